// Judges histories of dlog's logs with Porcupine: is each of them linearizable?
//
// Call: checker DIRECTORY SECONDS <histories. Histories are JSON lines (operation, in model.go), and so are the
// verdicts. A history that is not linearizable is drawn in DIRECTORY; each is judged for so many SECONDS at most.
package main

import (
	"bufio"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

const (
	lineBytesMax = 1 << 28
	tailMax      = 6
	othersMax    = 12
)

type verdict struct {
	History    string   `json:"history"`
	Operations int      `json:"operations"`
	Unknown    int      `json:"unknown"`
	Result     string   `json:"result"` // Ok, Illegal, or Unknown: not decided in time
	Seconds    float64  `json:"seconds"`
	Drawing    string   `json:"drawing"`
	Story      []string `json:"story"`
}

func main() {
	directory := os.Args[1]
	seconds, err := strconv.ParseFloat(os.Args[2], 64)
	check(err)
	names, histories := read()
	verdicts := make([]verdict, len(names))
	var judging sync.WaitGroup
	room := make(chan struct{}, runtime.GOMAXPROCS(0))
	for index, name := range names {
		judging.Add(1)
		go func(index int, name string) {
			defer judging.Done()
			room <- struct{}{}
			defer func() { <-room }()
			limit := time.Duration(seconds * float64(time.Second))
			verdicts[index] = judge(name, histories[name], directory, limit)
		}(index, name)
	}
	judging.Wait()
	out := json.NewEncoder(os.Stdout)
	for _, each := range verdicts {
		check(out.Encode(each))
	}
}

func read() ([]string, map[string][]*operation) {
	var names []string
	histories := map[string][]*operation{}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, lineBytesMax)
	for lines.Scan() {
		one := &operation{}
		check(json.Unmarshal(lines.Bytes(), one))
		one.digest = empty.with(one.Values).digest
		if _, there := histories[one.History]; !there {
			names = append(names, one.History)
		}
		histories[one.History] = append(histories[one.History], one)
	}
	check(lines.Err())
	return names, histories
}

func judge(name string, all []*operation, directory string, limit time.Duration) verdict {
	began := time.Now()
	found := verdict{History: name, Operations: len(all), Story: []string{}}
	end := int64(math.MinInt64)
	for _, each := range all {
		if each.Return == nil {
			found.Unknown++
		} else if *each.Return > end {
			end = *each.Return
		}
	}
	var history []porcupine.Operation
	for _, each := range settled(all) {
		returned := end + 1
		if each.Return != nil {
			returned = *each.Return
		}
		history = append(history, porcupine.Operation{Input: each, Call: each.Call, Return: returned})
	}
	intoLanes(history)
	log := model()
	if isOfBank(all[0]) {
		log = bankModel()
	}
	result, info := porcupine.CheckOperationsVerbose(log, history, limit)
	found.Result = string(result)
	found.Seconds = time.Since(began).Seconds()
	if result != porcupine.Ok {
		found.Drawing = filepath.Join(directory, strings.ReplaceAll(name, "/", "_")+".html")
		check(porcupine.VisualizePath(log, info, found.Drawing))
		found.Story = story(log, history, info)
	}
	return found
}

// What became of appends without an outcome, where the history says it: its last operation, called when all others
// had returned, reads the whole log. A log only grows, so what is in there had its effect before, at that place; and
// of what is not, no operation can see an effect. Otherwise all is left to the search, which may take for ever.
func settled(all []*operation) []*operation {
	final := lastRead(all)
	if final == nil {
		return all
	}
	places := map[string]int{}
	for place, value := range final.Values {
		places[value] = place
	}
	var kept []*operation
	for _, each := range all {
		if each.Return != nil || each.Op != "append" {
			kept = append(kept, each)
			continue
		}
		place, there := places[each.Values[0]]
		if !there {
			continue
		}
		if each.Offset == unknown || each.Offset == place { // else it is where it must not be: nobody appended that
			known := *each
			known.Offset, known.Return = place, final.Return
			kept = append(kept, &known)
		}
	}
	return kept
}

func lastRead(all []*operation) *operation {
	var final *operation
	for _, each := range all {
		if each.Op == "read" && each.Certain && each.Return != nil && (final == nil || each.Call > final.Call) {
			final = each
		}
	}
	for _, each := range all {
		if final == nil || (each != final && each.Return != nil && *each.Return > final.Call) {
			return nil
		}
	}
	return final
}

// Porcupine draws a line for each client, on which operations come one after the other; ours overlap.
func intoLanes(history []porcupine.Operation) {
	order := make([]int, len(history))
	for index := range order {
		order[index] = index
	}
	sort.SliceStable(order, func(a, b int) bool { return history[order[a]].Call < history[order[b]].Call })
	var free []int64
	for _, index := range order {
		lane := 0
		for lane < len(free) && free[lane] >= history[index].Call {
			lane++
		}
		if lane == len(free) {
			free = append(free, 0)
		}
		free[lane] = history[index].Return
		history[index].ClientId = lane
	}
}

// The longest order that was possible, where it ends, and what has no place behind it.
func story(log porcupine.Model, history []porcupine.Operation, info porcupine.LinearizationInfo) []string {
	var longest []porcupine.Operation
	for _, partition := range info.PartialLinearizationsOperations() {
		for _, order := range partition {
			if len(order) > len(longest) {
				longest = order
			}
		}
	}
	done := map[*operation]bool{}
	at := log.Init()
	for _, each := range longest {
		done[each.Input.(*operation)] = true
		_, at = log.Step(at, each.Input, each.Output)
	}
	var left []porcupine.Operation
	for _, each := range history {
		if !done[each.Input.(*operation)] {
			left = append(left, each)
		}
	}
	sort.Slice(left, func(a, b int) bool { return left[a].Return < left[b].Return })
	lines := []string{}
	for _, each := range longest[max(0, len(longest)-tailMax):] {
		lines = append(lines, "in order:   "+each.Input.(*operation).String())
	}
	lines = append(lines, "then:       "+log.DescribeState(at))
	for index, each := range left {
		switch {
		case index == 0:
			lines = append(lines, "no place:   "+each.Input.(*operation).String())
		case index <= othersMax && each.Call <= left[0].Return:
			lines = append(lines, "meanwhile:  "+each.Input.(*operation).String())
		}
	}
	return lines
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
