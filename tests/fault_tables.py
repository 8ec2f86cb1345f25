"""All faults of all families."""

from __future__ import annotations

from fault_table_glm5_next import GLM5_NEXT
from fault_table_qwen4exp import QWEN4EXP
from fault_table_step35 import STEP35
from faults import Fault

FAULTS: dict[str, Fault] = {fault.id: fault for fault in (*STEP35, *QWEN4EXP, *GLM5_NEXT)}
SAMPLE = {name: fault for name, fault in FAULTS.items() if fault.sampled}
