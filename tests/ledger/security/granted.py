"""Grants, as Hypothesis makes them: names that nearly match, and patterns."""

from hypothesis import strategies as st

from ledger.security.access import Grant, Role, Rules

WHO = ["cn:a", "cn:ab", "uri:a", "dns:a", "uri:dlog:bookie:b1"]
LOGS = ["a", "ab", "a/b", "a/", "b", "_", "_audit"]
names = st.sampled_from([*WHO, "cn:a*", "cn:*", "*"])
logs = st.sampled_from([*LOGS, "a*", "a/*", "_*", "*"])


@st.composite
def grants(draw: st.DrawFn) -> Grant:
    role = draw(st.sampled_from(Role))
    return Grant(draw(names), role, "*" if role.is_of_cluster else draw(logs))


rules = st.lists(grants(), max_size=6).map(lambda found: Rules(tuple(sorted(set(found)))))
