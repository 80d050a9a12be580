"""The post of the hand-held world: every message is delivered at once, unless a test holds it.

A call is two messages, the question and its answer, and each can be held, released, lost or
given up by itself. Messages are delivered in the order in which they were sent.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

Answer = TypeVar("Answer")
Action = Callable[[], object]


class Kind(Enum):
    """What a question is about."""

    ADD = "add"
    LAC = "explicit LAC"
    FENCE = "fence"
    RECOVERY_READ = "recovery read"
    BASE_READ = "read of the last confirmed entry"
    WRITE_BACK = "write-back"
    READ = "read"
    CAS = "compare-and-swap"
    GET = "metadata read"
    JOURNAL = "journal commit"
    """Not a message: a bookie's disk makes durable what was queued."""


@dataclass(slots=True, eq=False)
class Message:
    kind: Kind
    client: str
    place: str
    """A bookie, or `metadata`."""
    entries: range
    is_answer: bool
    deliver: Action
    give_up: Action
    """Let the asker hear that there is no answer."""

    def __str__(self) -> str:
        way = (
            f"{self.place} -> {self.client}" if self.is_answer else f"{self.client} -> {self.place}"
        )
        return f"{self.kind.value} {list(self.entries)} {way}"


class Hold:
    """Messages of one sort that do not arrive until the test says so."""

    def __init__(self, post: "Post", fits: Callable[[Message], bool]) -> None:
        self.fits = fits
        self.messages: list[Message] = []
        self.is_losing = False
        self._post = post

    def __len__(self) -> int:
        return len(self.messages)

    def release(self) -> None:
        """Deliver all that was held, in order, and hold nothing more."""
        self._post.unhold(self)
        messages, self.messages = self.messages, []
        self._post.run_first(messages)

    def release_one(self) -> None:
        """Deliver the oldest message; go on holding."""
        self._post.pass_by(self.messages.pop(0))

    def time_out(self) -> None:
        """Let the askers hear that there is no answer. The messages are still on their way."""
        for message in list(self.messages):
            self._post.do(message.give_up)

    def lose(self) -> None:
        """Lose all that was held, and all like it from now on, as a cut cable does."""
        self.is_losing = True
        self.time_out()
        self.messages.clear()


class Post:
    def __init__(self, is_up: Callable[[str], bool], after_each: Action) -> None:
        self.delivered: list[Message] = []
        self.lose_number: int | None = None
        """The one message, counted from 0, that is lost."""
        self._is_up = is_up
        self._after_each = after_each
        self._unanswered: dict[int, tuple[str, Action]] = {}
        """Questions that were taken and not answered yet."""
        self._asked = 0
        self._way: deque[Message | Action] = deque()
        self._holds: list[Hold] = []
        self._running = False

    def hold(self, fits: Callable[[Message], bool]) -> Hold:
        hold = Hold(self, fits)
        self._holds.append(hold)
        return hold

    def unhold(self, hold: Hold) -> None:
        if hold in self._holds:
            self._holds.remove(hold)

    def ask(
        self,
        kind: Kind,
        client: str,
        place: str,
        handle: Callable[[Callable[[Answer], None]], None],
        on_answer: Callable[[Answer | None], None],
        entries: range = range(0),
    ) -> None:
        """Send a question that *handle* takes at *place*; *on_answer* hears once, None: nothing."""
        self._asked += 1
        number, heard = self._asked, False

        def hear(answer: Answer | None) -> None:
            nonlocal heard
            if not heard:
                heard = True
                on_answer(answer)

        def reply(answer: Answer) -> None:
            if self._unanswered.pop(number, None) is not None:
                self.send(
                    Message(kind, client, place, entries, True, lambda: hear(answer), give_up)
                )

        def give_up() -> None:
            hear(None)

        def take() -> None:
            if self._is_up(place):
                self._unanswered[number] = place, give_up
                handle(reply)
            else:
                give_up()

        self.send(Message(kind, client, place, entries, False, take, give_up))

    def break_off(self, place: str) -> None:
        """Let everybody hear that *place* will not answer what it has taken."""
        for number, (where, give_up) in list(self._unanswered.items()):
            if where == place:
                del self._unanswered[number]
                self._way.append(give_up)
        self.run()

    def send(self, message: Message) -> None:
        self._way.append(message)

    def do(self, action: Action) -> None:
        """Do *action* when its turn comes; if nothing is under way, now."""
        self._way.append(action)
        self.run()

    def run_first(self, messages: list[Message]) -> None:
        self._way.extendleft(reversed(messages))
        self.run()

    def pass_by(self, message: Message) -> None:
        """Deliver *message* though a hold fits it."""
        self._way.appendleft(message.deliver)
        self.run()

    def run(self) -> None:
        """Deliver until nothing is on its way but what is held."""
        if self._running:
            return
        self._running = True
        try:
            while self._way:
                self._next(self._way.popleft())
        finally:
            self._running = False

    def _next(self, what: Message | Action) -> None:
        if not isinstance(what, Message):
            what()
        else:
            hold = next((hold for hold in self._holds if hold.fits(what)), None)
            if hold is not None and not hold.is_losing:
                hold.messages.append(what)
                return
            self.delivered.append(what)
            lost = hold is not None or len(self.delivered) - 1 == self.lose_number
            (what.give_up if lost else what.deliver)()
        self._after_each()
