"""The algorithm: sketches, row moments, trust region, merge. Needs torch; knows no language models, no RL."""

from .optimizer import LoGRA
from .targets import DEFAULT_TARGETS, Target
from .trust_region import Probe, TrustRegion
from .values import NonFiniteSketch, Proposal, StaleProposal, StepReport, Update, Verdict

__all__ = [
    "DEFAULT_TARGETS",
    "LoGRA",
    "NonFiniteSketch",
    "Probe",
    "Proposal",
    "StaleProposal",
    "StepReport",
    "Target",
    "TrustRegion",
    "Update",
    "Verdict",
]
