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

type counter struct{ count uint64 }

func (c *counter) Apply(*raft.Log) interface{}         { c.count++; return c.count }
func (c *counter) Snapshot() (raft.FSMSnapshot, error) { return c, nil }
func (c *counter) Restore(source io.ReadCloser) error  { return source.Close() }
func (c *counter) Persist(sink raft.SnapshotSink) error {
	return sink.Close()
}
func (c *counter) Release() {}

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
	node, err := raft.NewRaft(config, &counter{}, store, store, snapshots, transport)
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
		var clients int
		var seconds float64
		_, err := fmt.Sscanf(asked.Text(), "run %d %g", &clients, &seconds)
		check(err)
		run(node, clients, time.Duration(seconds*float64(time.Second)))
	}
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
