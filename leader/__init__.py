"""Leader election on the metadata store: who should write a log. Fencing decides who can."""

from leader.campaign import campaign
from leader.errors import InvalidCampaign, NotElected
from leader.record import Candidate, LeaderInfo, candidates, contested_logs, current_leader, is_led
from leader.term import Term

__all__ = [
    "Candidate",
    "InvalidCampaign",
    "LeaderInfo",
    "NotElected",
    "Term",
    "campaign",
    "candidates",
    "contested_logs",
    "current_leader",
    "is_led",
]
