# Everything that is done to this project by hand or by CI. Needs GNU make and a python3 of 3.11 or newer
# with venv; the rest comes from PyPI into .venv, at the versions and with the hashes of requirements/.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
STAMP := $(VENV)/.installed
STAMP_DEV := $(VENV)/.installed-dev
STAMP_DOCS := $(VENV)/.installed-docs
STAMP_AUDIT := $(VENV)/.installed-audit
# All that is needed is in these files, each once: nothing else is looked for. What comes as source (PySpark) is
# built with the setuptools of requirements/build.txt, as hashes say nothing of what pip gets to build with.
INSTALL := $(BIN)/pip install --quiet --no-deps --require-hashes --no-build-isolation
PROTOS := $(sort $(wildcard */wire/*.proto))
PROTOC = $(PY) -m grpc_tools.protoc -I. --plugin=protoc-gen-mypy=$(BIN)/protoc-gen-mypy
# A file's tests share what they start, so they stay together. `make test PARALLEL=` runs one after the other.
# They wait half of the time: more of them than cores run at once. The quick ones compute, and start nothing.
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
PARALLEL ?= -n $(shell expr $(CORES) + 1) --maxprocesses 4 --dist loadfile --no-loadscope-reorder
PARALLEL_QUICK ?= -n $(CORES) --maxprocesses 4 --dist worksteal
SEED ?=
SEEDS ?=
LOGS ?=
REPAIR ?=
REPLICAS ?=
PARTITIONS ?=
GATEWAYS ?=
REPLICA ?=
CHANGES ?=
SHRINK_S ?=
ZK ?=
TLS ?=
STORE ?=
UPGRADE ?=
MODULES ?=
KINDS ?=

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Hundreds of processes of the tests import the same modules: compiled once, where an environment forbids it too.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: deploy-tools dist dist-test alerts help venv check drift audit pins fix quick test docs demo proto sim mutations transcripts metrics screenshots lakehouse bench bench-bookie bench-repair bench-spark bench-hostile bench-tls bench-console bench-peers bench-replica bench-kafka bench-archive bench-calls linearizable chaos chaos-jepsen chaos-ledger chaos-bookie chaos-repair chaos-replica chaos-spark chaos-kafka chaos-archive kafka-compat fuzz upgrade-test clean distclean

help:
	@echo 'make demo [ZK=1] [TLS=1]   the main job on real data: cluster, writer, standby, Spark, a killed leader;'
	@echo '                       TLS=1: with certificates of both ends everywhere'
	@echo 'make lakehouse [RATE=5000] [SEED=n]   a pipeline on real data: Spark from log to Parquet and to a second'
	@echo '                       log; its driver and a bookie are killed; rates and lag in build/lakehouse.svg'
	@echo 'make quick             the first tests to run: no process, no Java, no PySpark; half a minute'
	@echo 'make test              every test but the long ones, which other commands run (docs/testing.md)'
	@echo 'make check             read-only: format, lint, types, import contracts, generated code'
	@echo 'make audit             known vulnerabilities of what is pinned (asks a service), and an SBOM in build/'
	@echo 'make pins [UPGRADE=1]  write requirements/ anew: versions and hashes of all that is installed'
	@echo 'make docs              the site, in build/site/html; a dead link is an error. Needs no network once it is installed'
	@echo 'make fix               format and repair what can be repaired'
	@echo 'make sim [LOGS=1 | REPAIR=1 | REPLICAS=1 | PARTITIONS=1 | GATEWAYS=1] [SEED=n | SEEDS=a:b] [SHRINK_S=60] [CHANGES=text]'
	@echo '                       the simulator of ledgers, of logs, of repair, of replicas or of Kafka partitions: one seed, or those'
	@echo '                       from a up to b; a failing seed is made smaller, and told as a story'
	@echo 'make mutations         bugs, put in one at a time: deleted statements that no quick test notices, and'
	@echo '                       how many seeds of the simulators find each known bug'
	@echo 'make mutations MODULES="dlog/aio ..." [KINDS="delete negate compare connect number truth"]'
	@echo '                       bugs of these kinds in these modules, and which of them no quick test notices'
	@echo 'make chaos [CHAOS_S=600] [SEED=n] [TLS=1]   real processes under real trouble, on three ZooKeepers;'
	@echo '                       with TLS and roles, certificates are renewed every 30 s'
	@echo 'make chaos-jepsen [CHAOS_S=600] [SEED=n] [ZK=1]   power failures with lost page caches, flipped bits,'
	@echo '                       pauses, partitions, clock jumps, membership changes; a table of what became of records'
	@echo 'make linearizable [SEEDS=0:400] [CHAOS_S=60] [SEED=n]   histories of simulated logs, of real'
	@echo '                       processes and of replicas of a bank, judged by Porcupine; then bugs that it has to find. Needs Go'
	@echo 'make chaos-ledger [CHAOS_S=300] [SEED=n]   bookies are killed, stopped and cut off under ledgers'
	@echo 'make chaos-repair [CHAOS_S=600] [SEED=n] [ZK=1]   bookies and disks are lost, and repaired beside'
	@echo '                       the load; then every bookie restarted in turn'
	@echo 'make chaos-replica [CHAOS_S=600] [SEED=n] [ZK=3|1|0]   replicas of a bank are killed and stopped, bookies'
	@echo '                       and ZooKeepers too, snapshots damaged; then the history is judged by Porcupine (Go)'
	@echo 'make chaos-spark [CHAOS_S=300] [SEED=n]   a streaming query whose driver, keeper, workers and bookies'
	@echo '                       are killed, or away for 30 s; then two logs are compared row by row'
	@echo 'make chaos-kafka [CHAOS_S=600] [SEED=n] [ZK=3|1|0]   gateways, bookies, ZooKeepers and Kafka clients are'
	@echo '                       killed, stopped and cut off; what clients were told is compared with the logs'
	@echo 'make chaos-archive [CHAOS_S=600] [SEED=n]   archivers, readers and bookies are killed while an S3 that fails'
	@echo '                       takes the segments of a log; each record is compared, and each object'
	@echo 'make kafka-compat      tools of others (kcat, those of Kafka, Connect, Spark) at gateways, one row each'
	@echo 'make dist              wheel and source archive, in build/dist'
	@echo 'make dist-test         the wheel alone in a bare environment: dlog up, README, dlog demo, mypy'
	@echo 'make alerts            each alert of deploy/prometheus fires on real processes when its trouble is made;'
	@echo '                       needs a Prometheus (apt install prometheus), about 5 minutes'
	@echo 'make deploy-tools      Helm, the reader of Compose files and schemas, for the tests of deploy/; needs Go'
	@echo 'make transcripts       rewrite the golden transcripts of the protocol'
	@echo 'make screenshots       draw the console and the site for the documents; needs a Chromium (apt install chromium)'
	@echo 'make metrics           write docs/metrics.md anew, from what is declared'
	@echo 'make drawings          draw docs/drawings/*.txt anew'
	@echo 'make bench [ONLY=section]   speed of logs and what many cost, compared with the disk; table, JSON, drawing'
	@echo 'make bench-bookie      speed and memory of one bookie, compared with its disk; table, JSON, drawing'
	@echo 'make bench-repair [ONLY=section] [STORE=file]   audits, checks and repair of 100,000 ledgers; table, JSON'
	@echo 'make bench-hostile [ONLY="kind ..."]   p99 of a writer beside hostile clients, and beside a greedy one'
	@echo 'make bench-console [ZK=1]   pages, memory and processor of the console of 10,000 logs and 100,000 ledgers'
	@echo 'make bench-tls         lone appends, appends and reads with TLS and without it, in turns, with their ratios'
	@echo 'make bench-calls       Python calls of one lone append; fails if they have grown by a tenth'
	@echo 'make bench-spark [ONLY=section]   what Spark reads and writes, beside rows out of memory and Kafka; table, JSON'
	@echo 'make bench-peers [ONLY="row ..."] [TABLE=1]   dlog beside BookKeeper, DistributedLog'
	@echo '                       and Kafka in turns; needs a JDK and Maven. TABLE=1: benchmarks/peers.md of all runs'
	@echo 'make bench-kafka [ONLY="row"]   the Kafka gateway beside Kafka with the same clients: produce, fetch, latency, takeover'
	@echo 'make bench-replica [ONLY="system ..."]   Replica beside PySyncObj and hashicorp/raft in turns: commands, takeovers,'
	@echo '                       catch-up; the latter needs Go. Peers that cannot be had are left out'
	@echo 'make bench-archive [RATE=20000000] [MEGABYTES=400]   segments in object storage: MB/s, appends beside in'
	@echo '                       alternating rounds, reading through, opening of 1,000,000'
	@echo 'make upgrade-test      the previous release and this one in one cluster: bookies replaced one by one under'
	@echo '                       load, and back; then its level. PREVIOUS=file.whl: another one than of the stand-in'
	@echo 'make chaos-bookie [CHAOS_S=600] [MODEL_S=300] [SEED=n]   bookies are killed and starved, at length'
	@echo 'make fuzz [FUZZ_S=60] [ONLY="parser ..."]   parsers of what comes from outside, for so long each, by coverage'
	@echo 'make proto             generate the protobuf code again'
	@echo 'make venv | clean | distclean'

venv: $(STAMP)

# A stamp is written last, so that an installation that was interrupted is done again.
$(STAMP): $(STAMP_DEV) requirements/spark.txt
	@echo 'make: installing PySpark and the demo; PySpark alone is 450 MB, so this takes a few minutes the first time'
	@$(INSTALL) --requirement requirements/spark.txt
	@touch $@

$(STAMP_DEV): pyproject.toml requirements/build.txt requirements/product.txt requirements/dev.txt
	@python=; \
	for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	    if $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        python=$$name; break; \
	    fi; \
	done; \
	if [ -z "$$python" ]; then \
	    echo "make: Python 3.11 or newer is needed; found: $$(python3 --version 2>&1)." >&2; \
	    echo "make: install it (Debian 12 and newer: apt install python3 python3-venv)." >&2; \
	    exit 1; \
	fi; \
	if ! $$python -c 'import venv, ensurepip' 2>/dev/null; then \
	    echo "make: $$python cannot make virtual environments (no venv or ensurepip)." >&2; \
	    echo "make: install them (Debian: apt install python3-venv)." >&2; \
	    exit 1; \
	fi; \
	if [ ! -x $(BIN)/pip ]; then $$python -m venv $(VENV) || exit 1; fi
	@echo 'make: installing into $(VENV)'
	@# What an older clone installed under the name of another project.
	@$(BIN)/pip uninstall --quiet --yes dlog 2>/dev/null || true
	@$(INSTALL) --requirement requirements/build.txt
	@$(INSTALL) --requirement requirements/product.txt --requirement requirements/dev.txt
	@$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(STAMP_DOCS): $(STAMP_DEV) requirements/docs.txt
	@$(INSTALL) --requirement requirements/docs.txt
	@touch $@

# Some of what the documents need, the auditors need as well.
$(STAMP_AUDIT): $(STAMP_DOCS) requirements/audit.txt
	@$(INSTALL) --requirement requirements/audit.txt
	@touch $@

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(PY) -m tests.house
	@$(MAKE) --no-print-directory drift

drift: $(STAMP)
	@fresh=$$(mktemp -d) || exit 1; \
	trap 'rm -rf "$$fresh"' EXIT; \
	$(PROTOC) --python_out="$$fresh" --mypy_out="quiet:$$fresh" $(PROTOS) || exit 1; \
	stale=0; \
	for file in $$(cd "$$fresh" && find . -type f); do \
	    cmp -s "$$fresh/$$file" "$$file" || { echo "make: $$file is stale; run make proto" >&2; stale=1; }; \
	done; \
	[ $$stale = 0 ] && echo 'generated code: up to date'

# 1: something is vulnerable. 2: nobody could be asked.
audit: $(STAMP_AUDIT)
	@$(PY) -m tests.audit

pins: $(STAMP_AUDIT)
	$(PY) -m tests.pins $(if $(filter 1,$(UPGRADE)),--upgrade)

fix: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

quick: $(STAMP_DEV)
	$(PY) -m pytest -q --quick $(PARALLEL_QUICK)

test: $(STAMP)
	$(PY) -m pytest $(PARALLEL)

docs: $(STAMP_DOCS)
	$(PY) -m docs.site

demo: $(STAMP)
	@exec $(BIN)/dlog demo $(if $(filter 1,$(ZK)),--zookeeper) $(if $(filter 1,$(TLS)),--tls)

.PHONY: drawings
drawings: $(STAMP_DEV)
	$(PY) -m docs.site.drawings

lakehouse: $(STAMP)
	@exec $(PY) -m examples.lakehouse --rate $(or $(RATE),5000) --seed $(or $(SEED),1)

dist: $(STAMP_DEV)
	rm -rf build/dist build/lib build/bdist.*
	$(PY) -m build --no-isolation --outdir build/dist .

# From nothing but the wheel and PyPI. PySpark is 450 MB: a few minutes. DEMO=0 leaves the demo out.
dist-test: dist
	$(PY) -m tests.bare build/dist/*.whl $(if $(filter 0,$(DEMO)),--no-demo)

# What tests/deploy reads units, Compose file and chart with. Needs Go.
deploy-tools: $(STAMP_DEV)
	GOBIN=$(CURDIR)/build/tools go install helm.sh/helm/v3/cmd/helm@v3.16.4
	GOBIN=$(CURDIR)/build/tools go install github.com/compose-spec/compose-go/v2/cmd@v2.16.2
	mv build/tools/cmd build/tools/compose-spec
	$(BIN)/pip install --quiet 'kubernetes-validate>=1.31'

# Two at a time: each has a Prometheus and up to five processes of its own.
alerts: $(STAMP)
	DLOG_TEST_ALERTS=1 $(PY) -m pytest tests/deploy/test_alerts.py tests/deploy/test_alerts_fire.py -n 2 --dist worksteal

proto: $(STAMP)
	$(PROTOC) --python_out=. --mypy_out=quiet:. $(PROTOS)

sim: $(STAMP)
	$(PY) -m tests.simulation $(if $(LOGS),--logs) $(if $(REPAIR),--repair) $(if $(REPLICAS)$(REPLICA),--replicas) $(if $(PARTITIONS),--partitions) $(if $(GATEWAYS),--gateways) $(if $(SEED),--seed $(SEED)) $(if $(SEEDS),--seeds $(SEEDS)) $(if $(CHANGES),--changes "$(CHANGES)") $(if $(SHRINK_S),--shrink-s $(SHRINK_S))
	$(if $(LOGS),$(if $(SEED),,$(PY) -m pytest -q --long -m long tests/simulation/logs/test_interrupted_takeovers.py))

mutations: $(STAMP)
	$(PY) -m tests.mutants $(MODULES) $(if $(KINDS),--kinds $(KINDS))
	$(if $(MODULES),,$(PY) -m tests.simulation.mutations)

transcripts: $(STAMP)
	$(PY) -m tests.transcripts

screenshots: $(STAMP_DOCS)
	$(PY) -m tests.browser.shots docs/images
	$(PY) -m docs.site
	$(PY) -m tests.browser.site_shots build/site/html docs/images

metrics: $(STAMP)
	$(PY) -m tests.documents.metrics_page

bench: $(STAMP)
	$(PY) -m pytest -q --long -m long tests/benchmarks/test_logs.py
	$(PY) -m benchmarks $(if $(ONLY),--only $(ONLY))

bench-bookie: $(STAMP)
	$(PY) -m pytest -q --long -m long tests/benchmarks/test_bookie.py
	$(PY) -m benchmarks.bookie $(if $(ONLY),--only $(ONLY))

bench-spark: $(STAMP)
	$(PY) -m pytest -q --long -m long tests/benchmarks/test_spark.py
	$(PY) -m benchmarks.spark $(if $(ONLY),--only $(ONLY))

bench-peers: $(STAMP)
	@$(INSTALL) --requirement requirements/peers.txt
	@exec $(PY) -m benchmarks.peers $(if $(ONLY),--only $(ONLY)) $(if $(TABLE),--table)

bench-replica: $(STAMP)
	@$(INSTALL) --requirement requirements/peers.txt || echo 'make: PySyncObj cannot be installed here' >&2
	$(PY) -m pytest -q --long -m long tests/benchmarks/test_replica.py
	@exec $(PY) -m benchmarks.replica $(if $(ONLY),--only $(ONLY))

bench-kafka: $(STAMP)
	@$(INSTALL) --requirement requirements/peers.txt
	$(PY) -m pytest -q --long -m long tests/benchmarks/test_kafka.py
	@exec $(PY) -m benchmarks.kafka $(if $(ONLY),--only "$(ONLY)")

bench-archive: $(STAMP)
	$(PY) -m benchmarks.archive $(if $(RATE),--rate $(RATE)) $(if $(MEGABYTES),--megabytes $(MEGABYTES))

bench-hostile: $(STAMP)
	$(PY) -m benchmarks.hostile $(if $(ONLY),--only $(ONLY))

bench-console: $(STAMP)
	$(PY) -m pytest -q --long -m long tests/benchmarks/test_console.py
	$(PY) -m benchmarks.console $(if $(filter 1,$(ZK)),--zookeeper)

bench-tls: $(STAMP)
	$(PY) -m benchmarks.tls --rounds 5 --megabytes 150

bench-calls: $(STAMP)
	$(PY) -m benchmarks.calls --files

bench-repair: $(STAMP)
	$(PY) -m pytest -q --long -m long tests/benchmarks/test_repair.py
	$(PY) -m benchmarks.repair $(if $(ONLY),--only $(ONLY)) $(if $(STORE),--store $(STORE))

# Atheris has no wheels for some platforms; without it mutants are drawn by chance.
fuzz: $(STAMP)
	@$(INSTALL) --requirement requirements/fuzz.txt || echo 'make: Atheris cannot be installed here' >&2
	@exec $(PY) -m tests.fuzz --seconds $(or $(FUZZ_S),60) $(ONLY)

chaos: $(STAMP)
	$(PY) -m pytest -q --long -m long tests/integration/test_log_chaos.py \
	    tests/integration/test_takeover_with_a_dead_bookie.py
	@exec $(PY) -m tests.integration.chaos --seconds $(or $(CHAOS_S),600) --seed $(or $(SEED),1) $(if $(filter 1,$(TLS)),--tls)

# Each nemesis comes at least once, also where that takes longer than CHAOS_S. Then disks that lie have to be found.
chaos-jepsen: $(STAMP)
	$(PY) -m tests.integration.chaos --jepsen --seconds $(or $(CHAOS_S),600) --seed $(or $(SEED),1) \
	    --zookeepers $(if $(filter 1,$(ZK)),1,0)
	DLOG_TEST_JEPSEN=1 $(PY) -m pytest -q --long tests/integration/test_jepsen_chaos.py

# Porcupine is fetched by Go, at the version and checksum of tests/linearizable/checker/go.mod and go.sum.
linearizable: $(STAMP)
	@exec $(PY) -m tests.linearizable --seeds $(or $(SEEDS),0:400) --seconds $(or $(CHAOS_S),60) --seed $(or $(SEED),1)

chaos-ledger: $(STAMP)
	DLOG_TEST_CHAOS_S=$(or $(CHAOS_S),300) DLOG_TEST_CHAOS_SEED=$(or $(SEED),1) \
	    $(PY) -m pytest -s tests/integration/test_ledger_faults.py

# First real processes for CHAOS_S, then the engine on simulated disks: every crash point, every damaged byte,
# and MODEL_S of calls in any order. About half an hour on one core besides.
chaos-bookie: $(STAMP)
	DLOG_TEST_CHAOS_S=$(or $(CHAOS_S),600) DLOG_TEST_CHAOS_SEED=$(or $(SEED),1) \
	    $(PY) -m pytest -s tests/integration/test_bookie_chaos.py tests/integration/test_bookie_full_disk.py
	DLOG_TEST_MODEL_S=$(or $(MODEL_S),300) DLOG_TEST_CHAOS_SEED=$(or $(SEED),1) \
	    DLOG_TEST_CRASH_EVERY=1 DLOG_TEST_DAMAGE_EVERY=1 \
	    $(PY) -m pytest tests/bookie/storage/test_storage_model.py tests/bookie/storage/test_storage_damage.py \
	    tests/bookie/storage/test_storage_crash.py tests/bookie/storage/test_storage_crash_twice.py \
	    tests/ledger/metastore/test_sqlite_damage.py tests/ledger/metastore/test_sqlite_proofs.py
	$(PY) -m pytest -q --long -m long tests/ledger/metastore/test_sqlite_crashes.py

# Two wheels, each in an environment of its own; the embedded store, then ZooKeeper.
upgrade-test: $(STAMP)
	DLOG_TEST_UPGRADE=1 $(if $(PREVIOUS),DLOG_TEST_PREVIOUS_WHEEL=$(abspath $(PREVIOUS))) \
	    $(PY) -m pytest -s tests/integration/test_upgrade.py

# First bookies and disks are lost for CHAOS_S; then all bookies are restarted, one after the other, and a whole
# day of an operator passes.
chaos-repair: $(STAMP)
	$(PY) -m tests.integration.chaos --repair --seconds $(or $(CHAOS_S),600) --seed $(or $(SEED),1) \
	    --zookeepers $(if $(filter 1,$(ZK)),1,0)
	$(PY) -m pytest -s --long tests/integration/test_rolling_restart.py tests/integration/test_operators_day.py
	$(PY) -m pytest -q --long -m long tests/integration/test_repair_chaos.py tests/integration/test_autorecovery.py \
	    tests/integration/test_restore.py

chaos-replica: $(STAMP)
	$(PY) -m pytest -q --long -m long tests/integration/test_replica_chaos.py
	@exec $(PY) -m tests.linearizable --only bank --seconds $(or $(CHAOS_S),600) --seed $(or $(SEED),1) --zookeepers $(or $(ZK),3)

# First metadata store and bookies are away for 30 s each, and clusters that `make test` leaves out run; then
# anything is killed for CHAOS_S.
chaos-spark: $(STAMP)
	DLOG_TEST_AWAY_S=30 $(PY) -m pytest -q --long -k "away or idle" tests/dlog/spark/test_spark_sink_trouble.py
	$(PY) -m pytest -q --long -m long tests/dlog/spark/test_spark_cluster.py tests/dlog/spark/test_spark_pipelines.py \
	    tests/dlog/spark/test_spark_attempts.py tests/dlog/spark/test_spark_sink_trouble.py \
	    tests/examples/test_lakehouse.py tests/integration/test_spark_chaos.py
	@exec $(PY) -m tests.integration.chaos_spark --seconds $(or $(CHAOS_S),300) --seed $(or $(SEED),1)

# Without Java or Maven the clients of Java are left out, and the run says so.
chaos-kafka: $(STAMP)
	$(PY) -m pytest -q --long -m long tests/integration/test_kafka_chaos.py
	@exec $(PY) -m tests.integration.chaos --kafka --seconds $(or $(CHAOS_S),600) --seed $(or $(SEED),1) --zookeepers $(or $(ZK),3)

chaos-archive: $(STAMP)
	@exec $(PY) -m tests.integration.archive_chaos --seconds $(or $(CHAOS_S),600) --seed $(or $(SEED),1)

kafka-compat: $(STAMP)
	@exec $(PY) -m tests.integration.kafka_compat

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	rm -rf spark-warehouse metastore_db derby.log
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
