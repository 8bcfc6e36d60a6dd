"""The algorithm: sketches, row moments, trust region, merge. Needs torch; knows no language models, no RL."""

from .optimizer import LoGRA
from .packet import PacketError
from .replica import Receipt, Replica
from .sender import Sender
from .targets import DEFAULT_TARGETS, Target
from .traffic import TrafficReport, measure_traffic
from .trust_region import Probe, TrustRegion
from .values import Mismatch, NonFiniteSketch, Proposal, StaleProposal, StepReport, Update, Verdict

__all__ = [
    "DEFAULT_TARGETS",
    "LoGRA",
    "Mismatch",
    "NonFiniteSketch",
    "PacketError",
    "Probe",
    "Proposal",
    "Receipt",
    "Replica",
    "Sender",
    "StaleProposal",
    "StepReport",
    "Target",
    "TrafficReport",
    "TrustRegion",
    "Update",
    "Verdict",
    "measure_traffic",
]
