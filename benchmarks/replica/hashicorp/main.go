// A node of three on hashicorp/raft with raft-boltdb, as benchmarks/replica/nodes.py describes them.
//
// Call: node NUMBER DIRECTORY ADDRESS ADDRESS ADDRESS
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
)

const commandBytes = 100

const (
	recordBytes = 1000
	inFlight    = 1000 // of the commands that fill the state
)

// Counts commands, and keeps those of recordBytes.
type counter struct {
	count   uint64
	lock    sync.Mutex
	records [][]byte
}

type snapshot struct{ records [][]byte }

func (c *counter) Apply(log *raft.Log) interface{} {
	c.count++
	if len(log.Data) == recordBytes {
		c.lock.Lock()
		c.records = append(c.records, log.Data)
		c.lock.Unlock()
	}
	return c.count
}

func (c *counter) kept() int {
	c.lock.Lock()
	defer c.lock.Unlock()
	return len(c.records)
}

func (c *counter) Snapshot() (raft.FSMSnapshot, error) {
	return &snapshot{c.records[:len(c.records):len(c.records)]}, nil
}

func (c *counter) Restore(source io.ReadCloser) error {
	var records [][]byte
	for {
		record := make([]byte, recordBytes)
		if _, err := io.ReadFull(source, record); err == io.EOF {
			break
		} else if err != nil {
			return err
		}
		records = append(records, record)
	}
	c.lock.Lock()
	c.records = records
	c.lock.Unlock()
	return source.Close()
}

func (s *snapshot) Persist(sink raft.SnapshotSink) error {
	for _, record := range s.records {
		if _, err := sink.Write(record); err != nil {
			return err
		}
	}
	return sink.Close()
}

func (s *snapshot) Release() {}

func main() {
	number, err := strconv.Atoi(os.Args[1])
	check(err)
	directory, addresses := os.Args[2], os.Args[3:]
	config := raft.DefaultConfig()
	config.LocalID = raft.ServerID(addresses[number])
	config.Logger = hclog.NewNullLogger()
	store, err := raftboltdb.NewBoltStore(filepath.Join(directory, "raft.db")) // it syncs each write
	check(err)
	snapshots, err := raft.NewFileSnapshotStore(directory, 2, io.Discard)
	check(err)
	transport, err := raft.NewTCPTransport(addresses[number], nil, 3, 10*time.Second, io.Discard)
	check(err)
	var servers []raft.Server
	for _, address := range addresses {
		servers = append(servers, raft.Server{ID: raft.ServerID(address), Address: raft.ServerAddress(address)})
	}
	all := raft.Configuration{Servers: servers}
	if err := raft.BootstrapCluster(config, store, store, snapshots, transport, all); err != raft.ErrCantBootstrap {
		check(err) // else it was started before
	}
	state := &counter{}
	node, err := raft.NewRaft(config, state, store, store, snapshots, transport)
	check(err)
	go func() {
		for leads := range node.LeaderCh() {
			if leads && node.Apply(make([]byte, commandBytes), 0).Error() == nil {
				fmt.Println(`{"leads": true}`)
			}
		}
	}()
	asked := bufio.NewScanner(os.Stdin)
	for asked.Scan() {
		var clients, count int
		var seconds float64
		if _, err := fmt.Sscanf(asked.Text(), "fill %d", &count); err == nil {
			fill(node, count)
		} else if _, err := fmt.Sscanf(asked.Text(), "applied %d", &count); err == nil {
			for state.kept() < count {
				time.Sleep(2 * time.Millisecond)
			}
			fmt.Printf(`{"applied": %d}`+"\n", state.kept())
		} else {
			_, err := fmt.Sscanf(asked.Text(), "run %d %g", &clients, &seconds)
			check(err)
			run(node, clients, time.Duration(seconds*float64(time.Second)))
		}
	}
}

func fill(node *raft.Raft, count int) {
	var filling sync.WaitGroup
	room := make(chan struct{}, inFlight)
	for range count {
		room <- struct{}{}
		filling.Add(1)
		go func() {
			defer filling.Done()
			check(node.Apply(make([]byte, recordBytes), 0).Error())
			<-room
		}()
	}
	filling.Wait()
	fmt.Printf(`{"filled": %d}`+"\n", count)
}

func run(node *raft.Raft, clients int, limit time.Duration) {
	var all []float64
	var lock sync.Mutex
	var running sync.WaitGroup
	began := time.Now()
	for range clients {
		running.Add(1)
		go func() {
			defer running.Done()
			var times []float64
			for len(times) == 0 || time.Since(began) < limit {
				asked := time.Now()
				check(node.Apply(make([]byte, commandBytes), 0).Error())
				times = append(times, time.Since(asked).Seconds())
			}
			lock.Lock()
			all = append(all, times...)
			lock.Unlock()
		}()
	}
	running.Wait()
	took := time.Since(began).Seconds()
	sort.Float64s(all)
	at := func(share float64) float64 { return all[int(share*float64(len(all)-1))] }
	fmt.Printf(`{"ran": %d, "seconds": %g, "p50": %g, "p99": %g}`+"\n", len(all), took, at(0.5), at(0.99))
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
