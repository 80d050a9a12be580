"""The watches of one store, by path."""

from ledger.metastore.session import WatchTable


def test_a_path_is_asked_for_with_its_first_watch_and_given_up_with_its_last() -> None:
    told: list[str] = []
    table = WatchTable(lambda path: told.append(f"+{path}"), lambda path: told.append(f"-{path}"))
    first, second, other = table.add("/a"), table.add("/a"), table.add("/b")
    assert told == ["+/a", "+/b"]
    first.close()
    first.close()
    assert table.paths() == ["/a", "/b"]
    second.close()
    assert told == ["+/a", "+/b", "-/a"]
    assert "/a" not in table
    other.close()
    table.add("/a")
    assert told == ["+/a", "+/b", "-/a", "-/b", "+/a"]
