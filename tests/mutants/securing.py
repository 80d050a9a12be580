"""Bugs of connections with TLS: strangers who get in, and bookies that pass for others."""

from tests.mutants.mutant import mutant

_BOOKIE = "tests/ledger/test_secured_bookie.py::test_"
_FILES = "tests/ledger/security/test_certificates.py::test_"

mutant(
    "demands no certificate of clients",
    "ledger/security/certificates.py",
    old="    context.verify_mode = demanded\n",
    new=(
        "    client = part == ssl.PROTOCOL_TLS_CLIENT\n"
        "    context.verify_mode = demanded if client else ssl.CERT_NONE\n"
    ),
    test=_BOOKIE + "a_client_without_a_certificate_gets_nothing",
)
mutant(
    "lets plain clients in where TLS is required",
    "bookie/server/listener.py",
    old="            required = security.mode is TlsMode.REQUIRED\n",
    new="            required = False\n",
    test=_BOOKIE + "a_plain_client_hears_that_tls_is_needed_and_gets_nothing",
)
mutant(
    "takes any good certificate for that of the bookie that was meant",
    "ledger/transport/client_connection.py",
    old="            if reason is not None:\n                self._refuse(reason)",
    new="            if reason is None:\n                self._refuse(reason)",
    test=_BOOKIE + "a_bookie_with_the_certificate_of_another_one_is_not_used",
)
mutant(
    "goes on with a client whose certificate has expired",
    "bookie/server/listener.py",
    old="        if time.time() > self.identity.expires_at:\n",
    new="        if False:\n",
    test=_BOOKIE + "a_connection_ends_when_the_certificate_it_was_made_with_does",
)
mutant(
    "sends by the new connection before the old one has answered",
    "ledger/transport/session.py",
    old="        if self._before is not None and not self._before.is_idle:\n",
    new="        if False:\n",
    test=_BOOKIE + "connections_are_exchanged_after_a_renewal_without_a_lost_add",
)
mutant(
    "uses half a renewal",
    "ledger/security/certificates.py",
    old='    if error.reason == "KEY_VALUES_MISMATCH":\n',
    new="    if False:\n",
    test=_FILES + "a_key_of_another_certificate_is_refused",
)
mutant(
    "fails who connects while files are exchanged",
    "ledger/security/certificates.py",
    old="            if found is None or found.certificate.expires_at < time.time():\n",
    new="            if True:\n",
    test=_FILES + "who_is_made_while_files_are_exchanged_uses_what_this_process_used_before",
)
mutant(
    "goes on with a certificate of before that has expired",
    "ledger/security/certificates.py",
    old="            if found is None or found.certificate.expires_at < time.time():\n",
    new="            if found is None:\n",
    test=_FILES + "what_was_used_before_does_not_help_once_it_has_expired",
)
mutant(
    "does not start between two halves of a renewal",
    "ledger/security/certificates.py",
    old="                if not error.retryable or loop.time() >= ends_at:\n",
    new="                if True:\n",
    test=_FILES + "who_starts_while_files_are_exchanged_waits_for_the_last_of_them",
)
mutant(
    "takes one half before a renewal and the other after it",
    "ledger/security/certificates.py",
    old="        if _signature(settings) == seen:\n            return found, seen\n",
    new="        if True:\n            return found, seen\n",
    test=_FILES + "files_that_are_exchanged_while_they_are_read_are_read_again",
)
mutant(
    "keeps adds on connections of files that were renewed",
    "ledger/transport/session.py",
    old="return self._generation != security.generation or now - self.made_at > security.age_s_max",
    new="return now - self.made_at > security.age_s_max",
    test=_BOOKIE + "connections_are_exchanged_after_a_renewal_without_a_lost_add",
)
mutant(
    "keeps connections however old they are",
    "ledger/transport/session.py",
    old="return self._generation != security.generation or now - self.made_at > security.age_s_max",
    new="return self._generation != security.generation",
    test=_BOOKIE + "connections_are_exchanged_when_they_are_old",
)
mutant(
    "shows metrics to strangers",
    "ledger/metering/http_server.py",
    old='            case b"/metrics" if not known:\n',
    new='            case b"/metrics" if False:\n',
    test="tests/ledger/metering/test_serving_secured.py::test_"
    "metrics_are_for_those_with_a_certificate_and_health_for_all",
)
mutant(
    "lets one address have all strangers",
    "ledger/security/tls_listener.py",
    old="            if self._of_source[source] >= most:\n",
    new="            if False:\n",
    test=_BOOKIE + "strangers_of_one_address_are_bounded",
)

_CHILDREN = (
    "tests/bookie/test_helping.py::test_"
    "no_process_that_another_one_starts_has_the_namespace_on_its_command_line"
)

mutant(
    "shows the namespace to all who list the processes of a machine",
    "bookie/autorecovery_supervisor.py",
    old='        *("--parent", str(os.getpid())),\n',
    new='        *("--uri", uri, "--parent", str(os.getpid())),\n',
    test=_CHILDREN,
)
mutant(
    "shows the namespace of a local cluster to all who list processes",
    "dlog/local/bookie_process.py",
    old='        where = ["--dir", str(self.directory)]\n',
    new='        where = ["--uri", self._uri, "--dir", str(self.directory)]\n',
    test=_CHILDREN,
)
