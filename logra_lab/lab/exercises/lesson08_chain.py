"""The chain exercise of lesson 08: which packets may be applied, and where the receiver stands afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from logra_lab.lab.checks import Case, Slip, exercise
from logra_lab.lab.parcels import Parcel, chain, damaged

ROOT = "root"
APPLIED, RESYNC = "applied", "resync"
Answer = tuple[list[str], str]


def sent(count: int = 4) -> list[Parcel]:
    """So many packets that follow ROOT."""
    return chain(ROOT, [f"update {n}" for n in range(count)])


def missing() -> tuple:
    a, _, c, d = sent()
    return ROOT, [a, c, d]


def late() -> tuple:
    a, b, c, d = sent()
    return ROOT, [a, c, b, c, d]


def repeated() -> tuple:
    a, b, c, _ = sent()
    return ROOT, [a, a, b, b, c]


def foreign() -> tuple:
    stranger = chain("another root", ["update 0", "update 1"])
    a, b, *_ = sent()
    return ROOT, [stranger[0], a, stranger[1], b]


def broken() -> tuple:
    a, b, c, _ = sent()
    return ROOT, [a, damaged(b), c, b, c]


def told(
    accept: Callable[[str, int, Parcel], bool], move: str = "on success", to: str = "computed"
) -> Callable[..., Answer]:
    """A receiver that applies what `accept(link, count, parcel)` lets in; when it moves, and to what, may be wrong."""

    def answer(link: str, parcels: Sequence[Parcel]) -> Answer:
        statuses, count = [], 0
        for parcel in parcels:
            good = accept(link, count, parcel)
            statuses.append(APPLIED if good else RESYNC)
            count += good
            if good and move != "never" or move == "always":
                link = getattr(parcel, to)
        return statuses, link

    return answer


def right(link: str, count: int, parcel: Parcel) -> bool:
    return parcel.parent == link and parcel.computed == parcel.says


def until_refused(link: str, parcels: Sequence[Parcel]) -> Answer:
    """Gives up at the first refusal."""
    statuses: list[str] = []
    for parcel in parcels:
        good = RESYNC not in statuses and right(link, 0, parcel)
        statuses.append(APPLIED if good else RESYNC)
        link = parcel.computed if good else link
    return statuses, link


def cut_short(link: str, parcels: Sequence[Parcel]) -> Answer:
    """Leaves the loop at the first refusal."""
    statuses, end = until_refused(link, parcels)
    return statuses[: statuses.index(RESYNC) + 1] if RESYNC in statuses else statuses, end


@exercise(
    "follow",
    Case("packets in order are applied", lambda: (ROOT, sent()), hint="Start at the link you are given."),
    Case("after a missing one, nothing is applied", missing, hint="Each packet names the link it follows."),
    Case("the missing one may still come, and then the others", late),
    Case("a repeated one is refused, and the next applied", repeated),
    Case("packets of another run are refused", foreign, hint="Numbers alone can't tell two runs apart."),
    Case(
        "a damaged one is refused",
        broken,
        hint="`says` came with the packet; `computed` is the hash of what is there.",
    ),
    slips=(
        Slip(
            "You move on after a refusal. A refused packet must leave the receiver where it was.",
            told(right, "always"),
        ),
        Slip(
            "The link never moves: after a packet is applied, it is the next one's parent.",
            told(right, "never"),
        ),
        Slip(
            "You trust what the packet says of itself. Compare it with what was computed from the bytes.",
            told(lambda link, count, p: p.parent == link),
        ),
        Slip(
            "You trust what the packet says of itself. Compare it with what was computed from the bytes.",
            told(lambda link, count, p: p.parent == link, to="says"),
        ),
        Slip(
            "You move on after a refusal. A refused packet must leave the receiver where it was.",
            told(right, "always", to="says"),
        ),
        Slip(
            "You count numbers. A packet of another run has the right number too; its parent gives it away.",
            told(lambda link, count, p: p.number == count and p.computed == p.says),
        ),
        Slip(
            "You count numbers and nothing else: other runs and damaged packets get in.",
            told(lambda link, count, p: p.number == count),
        ),
        Slip(
            "You look for damage only. A whole packet can still be the wrong one: compare its parent with your link.",
            told(lambda link, count, p: p.computed == p.says),
        ),
        Slip(
            "You apply what is not older. A gap must be refused: the updates between would be missing for ever.",
            told(lambda link, count, p: p.number >= count and p.computed == p.says),
        ),
        Slip("You stop at the first refusal. The packet that is due may still come.", until_refused),
        Slip(
            "You stop at the first refusal. Each packet gets a word, and the one that is due may still come.",
            cut_short,
        ),
    ),
)
def follow(link: str, parcels: Sequence[Parcel]) -> Answer:
    """What becomes of each packet, and the receiver's link at the end (method.md §5)."""
    statuses = []
    for parcel in parcels:
        good = parcel.parent == link and parcel.computed == parcel.says
        statuses.append(APPLIED if good else RESYNC)
        link = parcel.computed if good else link
    return statuses, link
