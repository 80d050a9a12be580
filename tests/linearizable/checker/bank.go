package main

// The bank of tests/linearizable/bank.py as a sequential object. Each operation tells the serial number of its effect
// or, of a read, of the last effect that it saw:
//
//	deposit  [-1, to, amount, the balance of "to" after it]
//	transfer [from, to, amount, 1 if there was enough money, else 0]; without an answer its result is empty
//	balances [of each account]

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/anishathalye/porcupine"
)

const accounts = 8

type bank struct {
	serial   int
	balances [accounts]int
}

func isOfBank(o *operation) bool {
	return o.Op == "deposit" || o.Op == "transfer" || o.Op == "balances"
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	check(err)
	return value
}

func (at bank) after(o *operation) (bool, bank) {
	if o.Op == "balances" {
		if o.Offset != at.serial || len(o.Values) != accounts {
			return false, at
		}
		for account, balance := range at.balances {
			if number(o.Values[account]) != balance {
				return false, at
			}
		}
		return true, at
	}
	if o.Offset != at.serial+1 {
		return false, at
	}
	to, amount, result := number(o.Values[1]), number(o.Values[2]), o.Values[3]
	at.serial++
	if o.Op == "deposit" {
		at.balances[to] += amount
		return result == "" || number(result) == at.balances[to], at
	}
	from := number(o.Values[0])
	enough := at.balances[from] >= amount
	if enough {
		at.balances[from] -= amount
		at.balances[to] += amount
	}
	return result == "" || (number(result) == 1) == enough, at
}

func bankModel() porcupine.Model {
	return porcupine.Model{
		Init: func() interface{} { return bank{} },
		Step: func(at, input, _ interface{}) (bool, interface{}) {
			return at.(bank).after(input.(*operation))
		},
		Equal:             func(a, b interface{}) bool { return a == b },
		Hash:              func(at interface{}) uint64 { return uint64(at.(bank).serial) },
		DescribeOperation: func(input, _ interface{}) string { return input.(*operation).String() },
		DescribeState: func(at interface{}) string {
			return fmt.Sprintf("%v after effect %d", at.(bank).balances, at.(bank).serial)
		},
	}
}

func (o *operation) ofBank() string {
	return fmt.Sprintf("%s %s at %d", o.Op, strings.Join(o.Values, " "), o.Offset)
}
