"""Bugs of who may do what: rights that are not asked for, or outlive what they came from."""

from tests.mutants.mutant import mutant

_GUARDING = "tests/bookie/server/test_guarding.py::test_"
_EACH = _GUARDING + "each_operation_is_open_to_the_roles_that_it_is_for_and_to_no_other"
_COPIES = _GUARDING + "the_certificate_of_a_bookie_copies_what_is_settled_and_adds_nothing"
_COPY_RIGHTS = "tests/bookie/server/test_copy_rights.py::test_"
_REVOKED = _GUARDING + "a_right_that_is_revoked_ends_on_connections_that_are_open"
_RIGHTS = "tests/bookie/server/test_rights.py::test_"
_ACCESS = "tests/ledger/security/test_access.py::test_"
_WHOLE = "tests/dlog/aio/test_access.py::test_"

mutant(
    "takes adds from everybody who is known",
    "bookie/server/authorizer.py",
    old="            if answer is not Status.OK:",
    new="            if answer is None:",
    test=_EACH,
)
mutant(
    "asks for a writer's right with its first add only",
    "bookie/server/add_connection.py",
    old="        may = self._door is None or self._door.admits(runs)\n",
    new="        may = self._door is None or hasattr(self, 'let_in') or self._door.admits(runs)\n"
    "        self.let_in = True\n",
    test=_REVOKED,
)
mutant(
    "remembers a right that was revoked",
    "bookie/server/authorizer.py",
    old='        """Allowed on some ledger at least."""\n        self._masks.clear()\n',
    new='        """Allowed on some ledger at least."""\n',
    test=_REVOKED,
)
mutant(
    "lets readers fence",
    "bookie/server/read_connection.py",
    old="    return Action.RECOVER if fence else Action.READ",
    new="    return Action.READ",
    test=_EACH,
)
mutant(
    "lets readers list what repair lists",
    "bookie/server/read_connection.py",
    old="await self._why_not(query.ledger_id, Action.LIST, fence=False)",
    new="await self._why_not(query.ledger_id, Action.READ, fence=False)",
    test=_EACH,
)
mutant(
    "lets repair append",
    "ledger/security/access.py",
    old="    Role.BOOKIE: Action.READ | Action.RECOVER | Action.LIST,",
    new="    Role.BOOKIE: Action.READ | Action.RECOVER | Action.LIST | Action.ADD,",
    test=_EACH,
)
mutant(
    "gives a reader that waited what came after its right was revoked",
    "bookie/server/read_connection.py",
    old="                answer = answer if status is Status.OK else ReadAnswer(status)\n",
    new="",
    test=_GUARDING + "a_reader_that_waits_gets_nothing_that_came_after_its_right_was_revoked",
)
mutant(
    "takes a grant of one log for one of all that begin like it",
    "ledger/security/access.py",
    old="    return pattern == name",
    new="    return name.startswith(pattern)",
    test=_ACCESS + "what_a_grant_allows_is_allowed_and_nothing_else",
)
mutant(
    "gives nobody what everybody was granted",
    "ledger/security/access.py",
    old="        if not identity:\n            return ()\n",
    new="",
    test=_ACCESS + "nobody_has_no_grants_not_even_those_of_everybody",
)
mutant(
    "opens ledgers of no log to who was granted some logs",
    "ledger/security/access.py",
    old="        return self.logs == ANYTHING or (log is not None and fits(self.logs, log))",
    new="        return self.logs == ANYTHING or log is None or fits(self.logs, log)",
    test=_ACCESS + "what_a_grant_allows_is_allowed_and_nothing_else",
)
mutant(
    "forgets all grants when they cannot be read",
    "bookie/server/authorizer.py",
    old="        except DamagedMetadata as error:\n",
    new="        except DamagedMetadata as error:\n            self._table.learn_rules(Rules())\n",
    test=_GUARDING + "rules_that_cannot_be_read_leave_the_last_ones_in_force",
)
mutant(
    "keeps to the name that a log had before it was renamed",
    "bookie/server/authorizer.py",
    old="        self._owners.clear()\n",
    new="",
    test=_GUARDING + "rights_follow_a_log_that_is_renamed",
)
mutant(
    "believes a name that was looked up before a rename",
    "bookie/server/authorizer.py",
    old="        if names != self.names:",
    new="        if False:",
    test=_RIGHTS + "a_name_that_was_looked_up_before_a_rename_is_not_believed_after_it",
)
mutant(
    "denies to who recovers what the metadata store does not know",
    "bookie/server/read_connection.py",
    old="        return Status.TOO_MANY_REQUESTS if unmade and fence else status",
    new="        return status",
    test=_GUARDING + "what_nobody_made_is_no_ones_to_fence_and_its_absence_no_promise",
)
mutant(
    "asks a silent store whose each ledger is",
    "bookie/server/metadata_lookups.py",
    old=(
        "            return Status.NO_SUCH_LEDGER\n"
        "        except (LogError, TimeoutError):\n"
        "            self._silent_until = self._clock() + SILENCE_S"
    ),
    new=(
        "            return Status.NO_SUCH_LEDGER\n"
        "        except (LogError, TimeoutError):\n"
        "            pass"
    ),
    test=_GUARDING + "a_store_that_is_silent_is_not_asked_about_each_ledger",
)
mutant(
    "guards the port of operators only",
    "bookie/process.py",
    old="            self.clients.guard = self.operators.guard = guard",
    new="            self.operators.guard = guard",
    test=_WHOLE + "a_log_is_open_to_whom_it_was_granted_and_closed_again_when_that_is_revoked",
)
mutant(
    "obeys everybody who has a certificate",
    "bookie/process.py",
    old="            self.clients.guard = self.operators.guard = guard",
    new="            self.clients.guard = guard",
    test=_WHOLE + "orders_are_taken_from_operators_and_are_in_the_log",
)
mutant(
    "lets who may write everything write down what others did",
    "ledger/security/access.py",
    old="                actions &= Action.READ\n",
    new="                actions &= ALLOWED[self.role]\n",
    test=_ACCESS + "what_a_grant_allows_is_allowed_and_nothing_else",
)
mutant(
    "takes what is allowed on all logs of applications for allowed on dlog's own",
    "ledger/security/access.py",
    old="        return self.allows(None) & self.allows(OWN_LOGS)\n",
    new="        return self.allows(None)\n",
    test=_RIGHTS + "what_is_remembered_never_says_more_or_less_than_the_rules",
)
mutant(
    "begins a change before it is written down",
    "dlog/changes/recorder.py",
    old="    if (reason := await pen.write(begun)) is not None and mode is Mode.REQUIRED:\n",
    new="    if (reason := None) is not None and mode is Mode.REQUIRED:\n",
    test="tests/dlog/changes/test_recording.py::test_where_it_is_required_nothing_is_done_that_cannot_be_written_down",
)
mutant(
    "writes passwords down",
    "dlog/cli/change_records.py",
    old='"uri", "as_json", "yes", "password"',
    new='"uri", "as_json", "yes"',
    test="tests/dlog/cli/test_cli_changes.py::test_passwords_and_the_namespace_are_not_written_down",
)

_OWNERS = "tests/bookie/server/test_owners.py::test_"

mutant(
    "takes recovery adds from whoever may recover",
    "bookie/server/authorizer.py",
    old="everywhere) & _ADD:",
    new="everywhere) & (_ADD | (4 if run.recovery else 0)):",
    test=_RIGHTS + "what_is_remembered_never_says_more_or_less_than_the_rules",
)
mutant(
    "takes whatever is called a copy",
    "bookie/server/authorizer.py",
    old="        if not evidence.why_not(run, self._guard.copies.bookie, self._rights.who):\n",
    new="        if True:\n",
    test=_COPIES,
)
mutant(
    "takes a last add confirmed for something that repair copies",
    "bookie/server/authorizer.py",
    old='            return "only who may append says what is confirmed"\n',
    new='            return ""\n',
    test=_COPIES,
)
mutant(
    "takes copies beside the repair of another certificate",
    "bookie/server/authorizer.py",
    old="        if who not in lock.identities:\n",
    new="        if False:\n",
    test=_COPY_RIGHTS + "a_copy_is_taken_of_nobody_but_who_the_lock_names_for_this_bookie",
)
mutant(
    "takes copies that go to another bookie",
    "bookie/server/authorizer.py",
    old="        if bookie not in lock.targets:\n",
    new="        if False:\n",
    test=_COPY_RIGHTS + "a_copy_is_taken_of_nobody_but_who_the_lock_names_for_this_bookie",
)
mutant(
    "takes copies of what is not settled",
    "bookie/server/authorizer.py",
    old="            if end is None or entry_id > end:\n",
    new="            if end is None:\n",
    test=_COPIES,
)
mutant(
    "takes copies of what other members hold",
    "bookie/server/authorizer.py",
    old="            if index is not None and not holds(index, entry_id, metadata.quorum):\n",
    new="            if False:\n",
    test=_COPY_RIGHTS + "a_copy_is_taken_if_it_is_settled_and_ours",
)
mutant(
    "writes into the lock of another worker",
    "bookie/autorecovery/marks.py",
    old="        if found is None or found[0].token != self._token:\n",
    new="        if found is None:\n",
    test="tests/bookie/autorecovery/test_marks.py::test_a_lock_names_its_worker_and_whom_it_copies_"
    "to_as_long_as_it_is_its_own",
)
mutant(
    "believes a frame that it confirms itself",
    "bookie/storage/engine.py",
    old="        if checked.entries[checked.lac_at] <= checked.last_add_confirmed:\n",
    new="        if checked.entries[-1] <= checked.last_add_confirmed:\n",
    test="tests/bookie/storage/test_sparse.py::test_no_frame_carries_a_lac_of_its_own_id_or_beyond_"
    "whatever_comes_with_it",
)
mutant(
    "keeps rights by the name that a log had before",
    "bookie/server/authorizer.py",
    old="        self._owners.clear()\n        self._reset()\n",
    new="        self._owners.clear()\n",
    test=_RIGHTS + "rights_by_a_name_end_with_it",
)
mutant(
    "remembers the rights of all ledgers for ever",
    "bookie/server/authorizer.py",
    old="            if len(self._masks) >= MASKS_MAX:\n",
    new="            if False:\n",
    test=_RIGHTS + "what_is_remembered_is_bounded",
)
mutant(
    "believes the metadata of a ledger whose it is",
    "bookie/server/metadata_lookups.py",
    old="            found = await self._owner(ledger_id)\n        except",
    new="            found = belonging(metadata.custom)\n        except",
    test=_GUARDING + "who_relabels_a_ledger_gets_no_right_to_it",
)
mutant(
    "believes the metadata of a ledger without owner node at any level",
    "bookie/server/metadata_lookups.py",
    old="        if (await read_held(self._ledgers.store)).level < OWNERS:\n",
    new="        if True:\n",
    test=_GUARDING + "from_a_level_on_a_ledger_without_owner_node_is_of_no_log",
)
mutant(
    "keeps to what ledgers said before the level of owner nodes",
    "bookie/server/authorizer.py",
    old="        if RENAMED_PATH in paths or INSTANCE in paths:",
    new="        if RENAMED_PATH in paths:",
    test=_GUARDING + "from_a_level_on_a_ledger_without_owner_node_is_of_no_log",
)
mutant(
    "rises to the level of owner nodes without making them",
    "ledger/feature_level_upgrade.py",
    old="        if held.level < OWNERS <= level:\n",
    new="        if False:\n",
    test="tests/ledger/test_levels.py::test_ledgers_have_owner_nodes_before_the_level_demands_them",
)
mutant(
    "deletes an owner node that decides rights",
    "ledger/manager/ledger_store.py",
    old="        wholly = (*counted, CheckOp(OWNERS_PATH, OWNERS_MADE), DeleteOp(owner))\n",
    new="        wholly = (*counted, DeleteOp(owner))\n",
    test="tests/ledger/test_manager.py::"
    "test_an_owner_node_goes_with_its_ledger_unless_it_decides_rights",
)
mutant(
    "lets clients change owner nodes",
    "ledger/metastore/acl_roles.py",
    old="    OWNERS: (_READ, _ADD),\n",
    new="    OWNERS: (_READ, _CHANGE),\n",
    test="tests/ledger/metastore/test_acl_roles.py::"
    "test_an_owner_node_is_made_by_a_client_and_changed_by_nobody_but_operators",
)
mutant(
    "lets any number wait for whose their ledgers are",
    "bookie/server/metadata_lookups.py",
    old=('        is no answer now."""\n        if self._waiting >= WAITING_MAX:\n'),
    new=('        is no answer now."""\n        if False:\n'),
    test=_OWNERS + "so_many_wait_for_the_store_and_no_more",
)
mutant(
    "gives no place back to who asks whose a ledger is",
    "bookie/server/metadata_lookups.py",
    old=(
        "        except TimeoutError:\n"
        "            return Status.TOO_MANY_REQUESTS\n"
        "        finally:\n"
        "            self._waiting -= 1\n"
    ),
    new=(
        "        except TimeoutError:\n"
        "            return Status.TOO_MANY_REQUESTS\n"
        "        finally:\n"
        "            pass\n"
    ),
    test=_OWNERS + "so_many_wait_for_the_store_and_no_more",
)
mutant(
    "believes a server of the store that is behind about a ledger",
    "bookie/server/metadata_lookups.py",
    old=(
        "    async def _owned(self, ledger_id: LedgerId) -> Owned:\n"
        "        try:\n"
        "            metadata, _ = await self._ledgers.read(ledger_id)\n"
        "        except NoSuchLedger:  # this server of the store may not have seen it yet\n"
        "            metadata, _ = await self._ledgers.read(ledger_id, fresh=True)\n"
    ),
    new=(
        "    async def _owned(self, ledger_id: LedgerId) -> Owned:\n"
        "        try:\n"
        "            metadata, _ = await self._ledgers.read(ledger_id)\n"
        "        except NoSuchLedger:  # this server of the store may not have seen it yet\n"
        "            raise\n"
    ),
    test=_OWNERS + "a_ledger_that_one_server_of_the_store_has_not_seen_yet_is_asked_for_afresh",
)
mutant(
    "denies while a log gets another name",
    "bookie/server/authorizer.py",
    old="            if answer is None:  # names changed meanwhile\n",
    new="            if False:\n",
    test=_OWNERS + "who_asks_while_a_log_gets_another_name_is_neither_let_in_nor_denied",
)
mutant(
    "lets who may only read change what is in ZooKeeper",
    "ledger/metastore/acl.py",
    old="    if who:\n        perms = 0\n",
    new="    if False:\n        perms = 0\n",
    test="tests/ledger/metastore/test_acl.py::test_who_may_only_read_is_written_as_it_is_shown",
)
_ROLES = "tests/ledger/metastore/test_acl_roles.py::test_"
mutant(
    "lets a writer of logs change grants in ZooKeeper",
    "ledger/metastore/acl_roles.py",
    old='    "/access": (_READ, _READ),',
    new='    "/access": (_READ, _CHANGE),',
    test=_ROLES + "what_decides_rights_is_for_operators_alone",
)
mutant(
    "lets a writer of logs remove grants from ZooKeeper, and make others",
    "ledger/metastore/acl_roles.py",
    old="    ROOT: (_READ, _READ),",
    new="    ROOT: (_READ, _CHANGE),",
    test=_ROLES + "what_decides_rights_is_for_operators_alone",
)
mutant(
    "lets a bookie write the cookie of another one",
    "ledger/metastore/acl_roles.py",
    old="        bookies, clients = (_READ, _READ) if made_once else NODES[nearest(path)]\n",
    new="        bookies, clients = (_OWN, _READ) if made_once else NODES[nearest(path)]\n",
    test=_ROLES + "a_cookie_is_made_by_a_bookie_and_changed_by_nobody_but_it_and_operators",
)
mutant(
    "lets those who may not change a namespace change its ACLs",
    "ledger/metastore/acl_roles.py",
    old="_CHANGE: Final = _OWN | Permissions.CREATE | Permissions.DELETE\n",
    new="_CHANGE: Final = Permissions.ALL\n",
    test=_ROLES + "nobody_but_operators_changes_acls_or_what_is_at_the_top",
)
mutant(
    "takes a namespace for protected whose cookies anybody may write",
    "ledger/metastore/acl_roles.py",
    old="        return set(ids) - plain - owners == rest\n",
    new="        return set(ids) - plain - owners >= rest\n",
    test=_ROLES + "a_cookie_with_the_rights_of_others_is_found",
)
mutant(
    "makes nodes that everybody may change in a namespace with roles",
    "ledger/metastore/zookeeper.py",
    old="        return roles.acl_at(path) if roles.keep_rights else None\n",
    new="        return roles.acl_at(path)[:1] if roles.keep_rights else None\n",
    test="tests/dlog/test_initialising.py::"
    "test_a_namespace_that_was_open_is_protected_with_all_that_is_in_it",
)
mutant(
    "locks operators out who name somebody else",
    "dlog/namespace_init.py",
    old="    if not await store.is_among(roles.ids_at(INSTANCE)):\n",
    new="    if False:\n",
    test="tests/dlog/test_initialising.py::test_an_operator_does_not_lock_himself_out",
)
mutant(
    "grants roles to programs that are no operators",
    "dlog/cli/access.py",
    old="    if operators and not any(each.is_of(identity) for each in operators):\n",
    new="    if False:\n",
    test="tests/dlog/cli/test_cli_access.py::test_only_operators_grant_once_there_is_one",
)

_PORTS = _WHOLE + "names_of_which_programs_disagree_let_nobody_in_at_either_port"
_ORDERS = "tests/bookie/server/test_operator.py::test_"

mutant(
    "believes a name in which a control character is",
    "ledger/security/names.py",
    old="    elif any(_CONTROL.intersection(value)",
    new="    elif False and any(_CONTROL.intersection(value)",
    test=_PORTS,
)
mutant(
    "takes one of several common names",
    "ledger/security/names.py",
    old="    if len(common) > 1:",
    new="    if False:",
    test=_PORTS,
)
mutant(
    "obeys who has an expired certificate",
    "bookie/server/operator.py",
    old="        if identity is not None and time.time() > identity.expires_at:",
    new="        if False:",
    test=_WHOLE + "a_certificate_that_has_expired_gives_no_orders_on_a_connection_that_is_open",
)
mutant(
    "obeys whoever connects",
    "bookie/server/operator.py",
    old="        if self._door is not None and not self._door.may_order():",
    new="        if False:",
    test=_WHOLE + "orders_are_taken_from_operators_and_are_in_the_log",
)
mutant(
    "lets silent connections keep operators away",
    "bookie/server/operator.py",
    old="ClientLimits(connections_max=256, connections_per_address_max=128)",
    new="ClientLimits(connections_max=32)",
    test=_ORDERS + "silent_connections_keep_no_operator_away",
)
mutant(
    "takes orders at the port of clients",
    "bookie/server/listener.py",
    old="        elif (hello.purpose is Purpose.ORDERS) is (server.operator is None):",
    new="        elif False:",
    test=_ORDERS + "orders_have_a_port_of_their_own_that_is_nobody_elses",
)
mutant(
    "carries out any number of orders at once",
    "bookie/server/operator.py",
    old="        if len(self._open) >= ORDERS_MAX:",
    new="        if False:",
    test=_ORDERS + "of_one_connection_so_many_orders_are_under_way_and_no_more",
)
mutant(
    "takes a bookie of another trust domain",
    "ledger/security/names.py",
    old="(of_own := trust_domains(own)) and not domains & of_own:\n",
    new="(of_own := trust_domains(own)) and not domains:\n",
    test="tests/ledger/security/test_names.py::test_a_bookie_of_another_trust_domain_is_not_taken",
)
mutant(
    "issues certificates of servers to clients",
    "dlog/tls/authority.py",
    old="    if wanted.serves:\n",
    new="    if wanted.days:\n",
    test="tests/dlog/tls/test_files.py::test_what_nobody_finds_is_for_clients_alone",
)
mutant(
    "renews a certificate for the name of its owner alone",
    "dlog/tls/files.py",
    old="    wanted = Wanted(name=str(name.value), hosts=hosts, uris=uris, days=days)\n",
    new="    wanted = Wanted(name=str(name.value), hosts=hosts, days=days)\n",
    test="tests/dlog/tls/test_files.py::"
    "test_a_renewed_certificate_has_the_same_names_and_another_key",
)
