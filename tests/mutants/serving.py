"""Bugs of a bookie's server: answers that come early, never, to strangers, or without a bound."""

from tests.mutants.mutant import mutant

_CORE = "tests/bookie/server/test_core.py::test_"
_SERVER = "tests/bookie/server/test_server.py::test_"
_SERVICE = "tests/bookie/server/test_service.py::test_"
_ERRORS = "tests/bookie/server/test_service_errors.py::test_"
_MADE = "tests/bookie/server/test_made_ledgers.py::test_"
_STRANGERS = "tests/bookie/server/test_descriptors.py::test_"
_FRAMING = "tests/ledger/test_transport_framing.py::test_"
_LIST = "tests/ledger/test_registry.py::test_"
_LIVES = "tests/bookie/identity/test_lives.py::test_"
_HANDSHAKE = "tests/ledger/test_transport_handshake.py::test_"
_CONNECTION = "tests/ledger/test_transport_connection.py::test_"
_CONNECTIONS = "tests/bookie/server/test_connections.py::test_"
_TRANSPORT = "tests/ledger/test_transport.py::test_"
_READ_ONLY = "tests/bookie/server/test_read_only.py::test_"
_OPERATOR = "tests/bookie/server/test_operator.py::test_"

mutant(
    "acknowledges an add before it is durable",
    "bookie/server/core.py",
    old="return bool(self._open) and self._open[0][1] <= self._core.durable",
    new="return bool(self._open)",
    test=_CORE + "an_add_is_acknowledged_after_its_commit_only",
)
mutant(
    "queues adds without a bound",
    "bookie/server/core.py",
    old="if queued_bytes and queued_bytes + size_bytes > bytes_max:",
    new="if False:",
    test=_CORE + "too_many_queued_bytes_are_refused_before_the_journal",
)
mutant(
    "lets writers use up the share of recovery",
    "bookie/server/core.py",
    old="queued_bytes = self._queued_bytes[run.recovery]",
    new="queued_bytes = sum(self._queued_bytes.values())",
    test=_CORE + "recovery_adds_have_a_share_of_their_own",
)
mutant(
    "counts adds as queued for ever",
    "bookie/server/core.py",
    old="self._queued_bytes[recovery] -= size_bytes",
    new="pass",
    test=_CORE + "too_many_queued_bytes_are_refused_before_the_journal",
)
mutant(
    "answers a fence before it is durable",
    "bookie/server/core.py",
    old="                yield UntilDurable(ticket)",
    new="                ticket = self.durable",
    test=_CORE + "a_fencing_read_is_not_answered_before_the_fence_is_durable",
)
mutant(
    "lets any number of reads wait",
    "bookie/server/core.py",
    old="if self._waiting_reads >= self.limits.waiting_reads_max:",
    new="if False:",
    test=_CORE + "waiting_reads_are_bounded",
)
mutant(
    "refuses recovery's reads for those of others",
    "bookie/server/core.py",
    old="if not query.fence and self._disk_reads >= self.limits.disk_reads_max:",
    new="if self._disk_reads >= self.limits.disk_reads_max:",
    test=_CORE + "disk_reads_are_bounded_but_not_those_of_recovery",
)
mutant(
    "gives a waiting read entries that are not confirmed",
    "bookie/server/core.py",
    old="            query = replace(query, last=min(query.last, lac))\n",
    new="",
    test=_CORE + "a_waiting_read_wakes_when_a_later_entry_confirms",
)
mutant(
    "takes batches in any order",
    "bookie/server/core.py",
    old="if batch != self._last_batch + 1:",
    new="if False:",
    test=_CORE + "a_batch_out_of_order_is_refused",
)
mutant(
    "makes checkpoints by time only",
    "bookie/server/service.py",
    old="if self._bytes_since_checkpoint >= self._config.checkpoint_bytes:",
    new="if False:",
    test=_SERVER + "checkpoints_come_by_bytes_and_by_time",
)
mutant(
    "makes checkpoints by bytes only",
    "bookie/server/service.py",
    old="self._sync_wake.wait(self._config.checkpoint_interval_s)",
    new="self._sync_wake.wait()",
    test=_SERVER + "checkpoints_come_by_bytes_and_by_time",
)
mutant(
    "does not wake the reads that wait for an entry",
    "bookie/server/service.py",
    old="get(ledger_id, ()):\n                _resolve(future, True)",
    new="get(ledger_id, ()):\n                pass",
    test=_SERVER + "a_waiting_read_wakes_on_a_fence_by_another_client",
)
mutant(
    "lets a read wait for as long as its client says",
    "bookie/server/service.py",
    old="min(wait_ms, _WAIT_MS_MAX)",
    new="wait_ms",
    test=_SERVER + "a_read_waits_no_longer_than_the_bookie_lets_it",
)
mutant(
    "lets waiting reads wait although the bookie stops",
    "bookie/server/service.py",
    old="                _resolve(future, False)\n",
    new="                pass\n",
    test=_SERVER + "stopping_answers_what_was_taken_and_writes_it_down",
)
mutant(
    "fences by a read what nobody made",
    "bookie/server/service.py",
    old="        if query.fence and await self._admits(query.ledger_id, query.key)"
    " is not Status.OK:\n            return ReadAnswer",
    new="        if False:\n            return ReadAnswer",
    test=_MADE + "a_ledger_that_nobody_made_is_neither_fenced_nor_written_and_never_denied",
)
mutant(
    "fences by a question for the LAC what nobody made",
    "bookie/server/service.py",
    old="        if query.fence and await self._admits(query.ledger_id, query.key)"
    " is not Status.OK:\n            return LacAnswer",
    new="        if False:\n            return LacAnswer",
    test=_MADE + "a_ledger_that_nobody_made_is_neither_fenced_nor_written_and_never_denied",
)
mutant(
    "takes adds to what nobody made",
    "bookie/server/service.py",
    old="        if self._made is None:\n            return {}",
    new="        if True:\n            return {}",
    test=_MADE + "a_ledger_that_nobody_made_is_neither_fenced_nor_written_and_never_denied",
)
mutant(
    "reads disks on the event loop",
    "bookie/server/service.py",
    old="or await self.on_reader(self._storage.prepare, run)",
    new="or self._storage.prepare(run)",
    test=_SERVER + "what_needs_the_disk_first_is_looked_up_off_the_event_loop",
)
mutant(
    "acknowledges adds after its storage has failed",
    "bookie/server/service.py",
    old="        if self.failure.done():\n            return\n"
    "        self._core.committed(durable)",
    new="        self._core.committed(durable)",
    test=_ERRORS + "nothing_is_acknowledged_after_a_failure",
)
mutant(
    "goes on with a storage that broke in an add",
    "bookie/server/service.py",
    old="            self._service.fail(error)  # what the storage holds now is not known\n",
    new="",
    test=_ERRORS + "an_add_that_breaks_the_storage_ends_the_bookie",
)
mutant(
    "denies what it could not read",
    "bookie/server/service.py",
    old="return ReadAnswer(Status.IO_ERROR)",
    new="return ReadAnswer(Status.NO_SUCH_LEDGER)",
    test=_ERRORS + "a_read_that_fails_is_an_error_and_never_an_absence",
)
mutant(
    "makes the last checkpoint before the last commit",
    "bookie/server/service.py",
    old="self.stopping.is_set() and all(journal.done() for journal in self._journals)",
    new="self.stopping.is_set()",
    test=_SERVICE + "the_last_checkpoint_waits_for_the_slowest_journal",
)
mutant(
    "takes any number of connections",
    "bookie/server/limits.py",
    old="        if len(self) >= limits.connections_max:",
    new="        if False:",
    test=_STRANGERS + "one_connection_too_many_is_not_served",
)
mutant(
    "gives each connection a budget of its own for large messages",
    "bookie/server/listener.py",
    old="body_bytes_max=0, budget=server.budget",
    new="body_bytes_max=0, budget=Budget()",
    test=_FRAMING + "the_clients_of_a_bookie_share_its_room_and_the_largest_message_goes",
)
mutant(
    "believes what a header promises",
    "ledger/transport/framing.py",
    old="self._believed_bytes = piece_bytes_max or BELIEVED_BYTES",
    new="self._believed_bytes = self._piece_bytes_max",
    test=_FRAMING + "a_body_takes_memory_as_it_arrives_and_not_as_its_header_says",
)
mutant(
    "lets messages that do not grow keep others out",
    "bookie/server/listener.py",
    old="now - each.since < _STALLED_S",
    new="True",
    test=_FRAMING + "who_sends_no_more_of_a_message_makes_room_for_who_does",
)
mutant(
    "does not give back what an unfinished message took",
    "ledger/transport/framing.py",
    old="        self._budget.left_bytes += self.paid_bytes\n",
    new="",
    test=_FRAMING + "all_connections_together_hold_no_more_than_the_budget",
)
mutant(
    "waits for ever for the rest of a message",
    "bookie/server/listener.py",
    old="elif not idle and now - self.since > _PIECE_S_MAX:",
    new="elif False:",
    test=_FRAMING + "a_message_that_is_never_completed_does_not_keep_its_room",
)
mutant(
    "waits for ever for a hello",
    "bookie/server/listener.py",
    old="late = now - self.since > limits.handshake_s_max",
    new="late = False",
    test=_HANDSHAKE + "who_says_nothing_is_shown_out_and_who_says_it_slowly_too",
)
mutant(
    "serves who means another bookie",
    "ledger/transport/handshake.py",
    old="if hello.bookie != bookie and (hello.bookie or hello.purpose is not Purpose.ORDERS):",
    new="if False:",
    test=_HANDSHAKE + "another_bookie_is_not_taken_for_the_one_that_is_meant",
)
mutant(
    "takes any number of writers",
    "bookie/server/listener.py",
    old="server.adders >= _ADDERS_MAX",
    new="False",
    test=_SERVER + "writers_are_bounded_and_those_that_are_gone_do_not_count",
)
mutant(
    "ends who finds no room among writers at once, who then comes again",
    "bookie/server/listener.py",
    old="            if why is RejectReason.WRITERS:\n",
    new="            if False:\n",
    test=_SERVER + "who_finds_no_room_among_writers_is_left_waiting_and_then_ended",
)
mutant(
    "counts writers that are gone",
    "bookie/server/listener.py",
    old="        self._server.adders -= self._is_adder\n",
    new="",
    test=_SERVER + "writers_are_bounded_and_those_that_are_gone_do_not_count",
)
mutant(
    "takes batches from a stream that is full",
    "bookie/server/add_connection.py",
    old="self._held is None and not self._stream.is_full",
    new="self._held is None",
    test=_CONNECTIONS + "a_writer_with_too_many_open_batches_is_not_read_from",
)
mutant(
    "reads on from a client that it has no room for",
    "bookie/server/add_connection.py",
    old="            self._waiting.append(frame)\n            self._connection.pause()\n",
    new="            self._waiting.append(frame)\n",
    test=_CONNECTIONS + "a_writer_with_too_many_open_batches_is_not_read_from",
)
mutant(
    "lets a batch pass one that is being prepared",
    "bookie/server/add_connection.py",
    old="        if self._waiting or not self._takes:",
    new="        if self._stream.is_full:",
    test=_CONNECTIONS + "a_batch_does_not_pass_the_one_before_it_that_needs_the_disk",
)
mutant(
    "makes acks for a client that does not take them",
    "bookie/server/add_connection.py",
    old="        if connection.is_blocked:\n            return\n",
    new="",
    test=_CONNECTIONS + "no_acks_are_made_for_a_writer_that_does_not_take_them",
)
mutant(
    "ends a connection before what waits to be sent",
    "ledger/transport/connection.py",
    old="        self._ended = True\n        if not self._waiting:\n",
    new="        self._ended = True\n        if True:\n",
    test=_CONNECTION + "the_end_follows_everything_that_was_written",
)
mutant(
    "never says that a client does not take its answers",
    "ledger/transport/connection.py",
    old="if not self.is_blocked and unsent_bytes > _UNSENT_BYTES_HIGH:",
    new="if False:",
    test=_CONNECTION + "who_takes_too_little_is_told_of_once_and_again_when_there_is_room",
)
mutant(
    "receives an answer over another one that somebody still looks at",
    "ledger/transport/blocks.py",
    old="    except BufferError:\n        return False\n",
    new="    except BufferError:\n        return True\n",
    test="tests/ledger/test_transport_blocks.py::"
    "test_what_a_reader_keeps_of_answers_stays_as_it_was",
)
mutant(
    "keeps a question that nobody waits for any more",
    "bookie/server/read_connection.py",
    old="                task.cancel()\n            elif",
    new="                pass\n            elif",
    test=_CONNECTIONS + "a_read_that_is_cancelled_ends_at_the_bookie_too",
)
mutant(
    "says that adds were kept when their connection was cut",
    "ledger/transport/session.py",
    old="self._loop.call_soon(on_done, Status.UNREACHABLE)",
    new="self._loop.call_soon(on_done, Status.OK)",
    test=_TRANSPORT + "a_bookie_that_dies_answers_what_is_open_and_is_used_again_after_its_return",
)
mutant(
    "takes batches out of the window while nothing is taken from it",
    "ledger/transport/session.py",
    old="while connection.is_ready and not connection.is_blocked:",
    new="while connection.is_ready:",
    test=_TRANSPORT + "what_comes_while_the_bookie_takes_nothing_leaves_together",
)
mutant(
    "takes whoever answers for the bookie that was meant",
    "ledger/transport/handshake.py",
    old='    if hello.bookie not in ("", welcome.bookie):',
    new="    if False:",
    test=_TRANSPORT + "a_bookie_that_welcomes_under_another_name_is_not_used",
)
mutant(
    "ends at a stop before what was taken is answered",
    "bookie/server/listener.py",
    old="if self._finish_by is not None and (self._handler is None or self._handler.is_done):",
    new="if self._finish_by is not None:",
    test=_SERVER + "stopping_answers_what_was_taken_and_writes_it_down",
)
mutant(
    "asks a metadata store that is silent about each ledger",
    "bookie/server/metadata_lookups.py",
    old=(
        "            return None\n"
        "        except (LogError, TimeoutError):\n"
        "            self._silent_until = self._clock() + SILENCE_S"
    ),
    new=("            return None\n        except (LogError, TimeoutError):\n            pass"),
    test=_MADE + "while_the_store_is_silent_a_bounded_number_is_taken_and_nobody_waits",
)
mutant(
    "lets any number of questions wait for the metadata store",
    "bookie/server/metadata_lookups.py",
    old=(
        '        `TOO_MANY_REQUESTS` if that is not known now."""\n'
        "        if self._waiting >= WAITING_MAX:"
    ),
    new=('        `TOO_MANY_REQUESTS` if that is not known now."""\n        if False:'),
    test=_MADE + "too_many_questions_at_once_are_not_asked",
)
mutant(
    "takes a ledger with another key than it was made with",
    "bookie/server/metadata_lookups.py",
    old="return compare_digest(await self._key(ledger_id), key)",
    new="return bool(await self._key(ledger_id))",
    test=_MADE + "a_ledger_that_nobody_made_is_neither_fenced_nor_written_and_never_denied",
)
mutant(
    "shares out more descriptors than there are",
    "bookie/server/limits.py",
    old="min(CONNECTIONS_MAX, limit - others - _CACHES * files)",
    new="min(CONNECTIONS_MAX, limit - others)",
    test=_STRANGERS + "the_shares_never_add_up_to_more_than_there_are",
)
mutant(
    "forgets an operator's order at a restart",
    "bookie/server/read_only.py",
    old="disk.create(PATH).close()",
    new="pass",
    test=_READ_ONLY + "an_order_of_an_operator_survives_a_restart_and_a_crash",
)
mutant(
    "does not make an operator's order durable",
    "bookie/server/read_only.py",
    old='        disk.remove(PATH)\n    disk.sync_directory("")\n',
    new="        disk.remove(PATH)\n",
    test=_READ_ONLY + "an_order_of_an_operator_survives_a_restart_and_a_crash",
)
mutant(
    "is writable before it was known what it must refuse",
    "bookie/server/read_only.py",
    old="        self._learn(self._measure())\n        return",
    new="        return",
    test=_READ_ONLY + "it_is_known_before_anything_is_served",
)
mutant(
    "deletes at an operator's word without asking how many",
    "bookie/server/operator.py",
    old='request.allow_deletions if request.HasField("allow_deletions") else None',
    new="1_000_000",
    test=_OPERATOR + "ledgers_that_the_cluster_does_not_know_are_collected_at_an_operators_word",
)
mutant(
    "ends a run when its operator goes away",
    "bookie/server/operator.py",
    old="await asyncio.shield(task)",
    new="await task",
    test=_OPERATOR + "a_run_is_refused_while_another_is_under_way_and_goes_on_without_its_client",
)
mutant(
    "believes a metadata store that is not its own",
    "bookie/server/loss_resolver.py",
    old="if alarm is not None:",
    new="if False:",
    test="tests/bookie/loss/test_limbo.py::test_a_namespace_made_anew_ends_no_limbo",
)
mutant(
    "does not doubt a ledger whose metadata it cannot read",
    "bookie/server/loss_resolver.py",
    old="if metadata is None or is_doubtful(metadata, bookie, is_older=ledger_id < floor)",
    new="if metadata is not None and is_doubtful(metadata, bookie)",
    test="tests/bookie/loss/test_limbo.py::test_doubtful_is_what_is_not_closed_and_ends_on_this_bookie",
)
mutant(
    "takes a bookie of another cluster for its own",
    "ledger/ids.py",
    old="        if self.instance != meant.instance:\n",
    new="        if False:\n",
    test=_HANDSHAKE + "a_bookie_of_the_same_name_is_not_taken_for_the_one_that_is_meant",
)
mutant(
    "takes a bookie with other data for its own",
    "ledger/ids.py",
    old="        if self.identity != meant.identity:\n",
    new="        if False:\n",
    test=_HANDSHAKE + "a_bookie_of_the_same_name_is_not_taken_for_the_one_that_is_meant",
)
mutant(
    "takes a bookie whose data another process has for its own",
    "ledger/ids.py",
    old="        if self.life < meant.life:\n",
    new="        if False:\n",
    test=_HANDSHAKE + "a_bookie_of_the_same_name_is_not_taken_for_the_one_that_is_meant",
)
mutant(
    "believes whoever welcomes it",
    "ledger/transport/client_connection.py",
    old="            if (reason := why_not_meant(self._hello, answer)) is not None:\n",
    new="            if (reason := None) is not None:\n",
    test=_TRANSPORT + "a_stranger_is_not_believed_though_it_compares_nothing",
)
mutant(
    "serves who means another bookie of its name",
    "ledger/transport/handshake.py",
    old="    if (reason := identity.why_not(hello.meant, bookie)) is not None:\n",
    new="    if (reason := None) is not None:\n",
    test=_HANDSHAKE + "a_bookie_of_the_same_name_is_not_taken_for_the_one_that_is_meant",
)
mutant(
    "believes who does not say who it is",
    "ledger/transport/handshake.py",
    old="    if welcome.identity is None:\n        return f",
    new="    if welcome.identity is None:\n        return None and f",
    test=_HANDSHAKE + "who_does_not_say_who_it_is_is_not_believed_where_somebody_is_meant",
)
mutant(
    "serves who does not say which one is meant above the level",
    "bookie/server/listener.py",
    old="        self.wire_lowest = IDENTIFIED\n",
    new="        pass\n",
    test=_HANDSHAKE + "above_its_level_a_bookie_refuses_who_does_not_say_which_is_meant",
)
mutant(
    "keeps a connection to who is not meant any more",
    "ledger/transport/client_connection.py",
    old="        return met is None or met.life >= meant.life\n",
    new="        return True\n",
    test=_TRANSPORT + "a_connection_ends_when_another_bookie_is_meant_by_now",
)
mutant(
    "means any bookie of the name where one is not registered",
    "ledger/registry.py",
    old="            identities[bookie] = self._meant(said if cookie.cookie else None)\n",
    new="            identities[bookie] = None\n",
    test=_LIST + "who_is_meant_stands_in_the_registration_and_else_in_the_cookie",
)
mutant(
    "means a registered bookie by its name alone where every bookie says who it is",
    "ledger/registry.py",
    old="        return NOBODY if said is None and self._level >= IDENTITIES else said\n",
    new="        return said\n",
    test=_LIST + "who_is_meant_stands_in_the_registration_and_else_in_the_cookie",
)
mutant(
    "does not report that its registration was lost",
    "bookie/identity/registration.py",
    old="                    self._on_lost()\n",
    new="",
    test="tests/bookie/identity/test_registering.py::"
    "test_a_lost_registration_is_reported_before_it_registers_again",
)
mutant(
    "continues though its cookie is gone",
    "bookie/identity/lives.py",
    old="        if await _instance(store) != claim.cookie.instance:\n",
    new="        if True:\n",
    test=_LIVES + "a_bookie_ends_when_its_own_namespace_has_forgotten_it",
)
mutant(
    "ends though another namespace does not know it",
    "bookie/identity/lives.py",
    old="        if await _instance(store) != claim.cookie.instance:\n",
    new="        if False:\n",
    test=_LIVES + "a_bookie_goes_on_when_another_store_does_not_know_it_or_its_node_is_damaged",
)
mutant(
    "does not read its cookie again after it stood still",
    "bookie/identity/lives.py",
    old="        self._to_report.set()\n\n    async def run",
    new="        pass\n\n    async def run",
    test=_LIVES + "a_bookie_reads_its_node_again_when_it_may_have_stood_still",
)
mutant(
    "gives a move between the lists of bookies up at the first trouble",
    "bookie/identity/registration.py",
    old="                await asyncio.sleep(backoff.next())\n            else:\n",
    new="                return\n            else:\n",
    test="tests/bookie/identity/test_registering.py::"
    "test_a_store_out_of_reach_delays_the_move_only",
)

mutant(
    "forgets what comes while a journal's thread commits",
    "bookie/server/service.py",
    old="not lock.acquire(blocking=False):\n            wake.set()\n",
    new="not lock.acquire(blocking=False):\n",
    test="tests/bookie/server/test_committing.py::"
    "test_what_comes_while_the_thread_commits_is_committed_after_that",
)
mutant(
    "lets the loop wait for a disk that hung a moment ago",
    "bookie/server/service.py",
    old=" and not self._hung",
    new="",
    test="tests/bookie/server/test_committing.py::"
    "test_a_disk_that_hung_is_left_to_the_thread_until_it_was_fast_for_long",
)

_HOSTILE = "tests/bookie/server/test_hostile_clients.py::test_"
mutant(
    "lets one address take all connections",
    "bookie/server/limits.py",
    old="        if self._of_source[source] >= limits.connections_per_address_max:",
    new="        if False:",
    test=_HOSTILE + "one_address_cannot_take_all_connections",
)
mutant(
    "takes all who come at once in one pass of the loop",
    "bookie/server/listener.py",
    old="sock=self._socket, backlog=_ACCEPTED_AT_ONCE",
    new="sock=self._socket",
    test=_HOSTILE + "of_many_who_come_at_once_a_few_are_taken_in_each_pass_of_the_loop",
)
mutant(
    "takes all who come at once in one pass of the loop, with TLS",
    "ledger/security/tls_listener.py",
    old="        for _ in range(_AT_ONCE_MAX):\n",
    new="        for _ in range(64):\n",
    test=_HOSTILE + "of_many_who_come_at_once_a_few_are_taken_in_each_pass_of_the_loop",
)
mutant(
    "takes all questions that come at once in one pass of the loop",
    "bookie/server/listener.py",
    old="            self.reader.receive_at_most(QUESTIONS_BYTES_MAX)\n",
    new="",
    test=_HOSTILE + "of_many_questions_that_come_at_once_some_are_taken_in_each_pass_of_the_loop",
)
mutant(
    "tells one who asks much to ask all of it again in one pass of the loop",
    "bookie/server/read_connection.py",
    old="islice(self._put_off.items(), _LATE_MAX)",
    new="self._put_off.items()",
    test=_HOSTILE + "who_is_told_to_ask_much_again_is_told_some_of_it_in_each_pass_of_the_loop",
)
mutant(
    "forgets who was told only some of what is to be asked again",
    "bookie/server/listener.py",
    old="        self._unlooked.append(connection)\n",
    new="        pass\n",
    test=_HOSTILE + "who_is_told_to_ask_much_again_is_told_some_of_it_in_each_pass_of_the_loop",
)
mutant(
    "looks at all clients in one pass of the loop",
    "bookie/server/admission.py",
    old="        if clock() >= ends_at:\n",
    new="        if False:\n",
    test="tests/bookie/server/test_slices.py::test_"
    "work_that_takes_long_is_left_for_the_next_passes",
)
mutant(
    "lets one address be all strangers",
    "bookie/server/limits.py",
    old="        if self._strangers_of[source] >= limits.strangers_per_address_max:",
    new="        if False:",
    test=_HOSTILE + "strangers_of_one_address_leave_room_for_who_says_what_it_wants",
)
mutant(
    "counts who said what it wants among the strangers",
    "bookie/server/listener.py",
    old="        server.places.know(self)\n        door",
    new="        door",
    test=_HOSTILE + "strangers_of_one_address_leave_room_for_who_says_what_it_wants",
)
mutant(
    "never gives the place of a connection back",
    "bookie/server/listener.py",
    old="        self.connections.pop(connection, None)\n        self.places.leave(connection)\n",
    new="        self.connections.pop(connection, None)\n",
    test=_HOSTILE + "one_address_cannot_take_all_connections",
)
mutant(
    "lets one connection ask all questions",
    "bookie/server/admission.py",
    old="return min(self.per_client_max, -(-self.left // 2))",
    new="return self.left",
    test=_HOSTILE + "one_connection_cannot_take_all_questions",
)
mutant(
    "is content with a byte now and then",
    "bookie/server/admission.py",
    old="        if not unsent_bytes or taken_bytes >= self._due_bytes:",
    new="        if not unsent_bytes or taken_bytes > self._due_bytes - TAKEN_BYTES:",
    test="tests/bookie/server/test_pace.py::test_a_byte_now_and_then_does_not_count",
)
mutant(
    "lets all clients together be due any amount",
    "bookie/server/listener.py",
    old="        if self.backlog.unsent_bytes > _BACKLOG_BYTES_MAX:\n",
    new="        if False:\n",
    test=_HOSTILE + "when_too_much_is_due_to_all_the_slowest_are_ended",
)
mutant(
    "reads on for a client that takes nothing",
    "bookie/server/admission.py",
    old="        return due_bytes < window_bytes and",
    new="        return",
    test=_HOSTILE + "a_client_that_takes_nothing_is_read_for_once_however_much_it_asks",
)
mutant(
    "reads for everybody who waits when an entry comes, whatever he takes",
    "bookie/server/service.py",
    old="return await self._until(ledger_id, deadline) and await turn.take()",
    new="return await self._until(ledger_id, deadline)",
    test=_HOSTILE + "an_entry_wakes_readers_of_one_that_takes_nothing_without_reading_for_them",
)
mutant(
    "forgets who waits until less is due to others",
    "bookie/server/read_connection.py",
    old="        self._room.leave(self)\n        self._room.eased()\n",
    new="        self._room.leave(self)\n",
    test=_HOSTILE + "a_client_to_whom_nothing_is_due_gets_its_turn_when_slow_ones_are_gone",
)
mutant(
    "leaves slow readers their time while others wait",
    "bookie/server/listener.py",
    old="        if self._server.room.is_crowded:\n",
    new="        if False:\n",
    test=_HOSTILE + "while_others_wait_for_it_a_slow_reader_has_less_time",
)
mutant(
    "lets those who ask for much take all questions",
    "bookie/server/admission.py",
    old="return min(self.per_client_max, -(-self.left // 2))",
    new="return self.per_client_max if self.left else 0",
    test=_HOSTILE + "many_who_ask_for_much_leave_questions_to_who_asks_for_little",
)
mutant(
    "lets who came last pass those who wait",
    "bookie/server/admission.py",
    old="        if self._waiting:\n            return False\n",
    new="",
    test="tests/bookie/server/test_turns.py::test_nobody_passes_those_who_wait",
)
mutant(
    "makes answers of one turn as if each were alone",
    "bookie/server/read_connection.py",
    old="        self._made_bytes += size_bytes\n",
    new="",
    test=_HOSTILE + "a_client_that_takes_nothing_is_read_for_once_however_much_it_asks",
)
mutant(
    "begins all questions that came at once",
    "bookie/server/read_connection.py",
    old="            self._starting += 1\n",
    new="            self._starting += 0\n",
    test=_HOSTILE + "a_client_that_takes_nothing_is_read_for_once_however_much_it_asks",
)
