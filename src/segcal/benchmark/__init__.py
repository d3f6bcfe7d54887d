"""Studies: datasets × methods × seeds, trained, evaluated and put side by side.

run_benchmark(plan, out)    the whole study; `segcal benchmark` is this
load_plan(file)             a checked plan
Study                       what was done, and its tables
"""

from segcal.benchmark.plan import DatasetPlan, MethodPlan, Plan, load_plan
from segcal.benchmark.runner import run_benchmark
from segcal.study.writer import Study

__all__ = ["DatasetPlan", "MethodPlan", "Plan", "Study", "load_plan", "run_benchmark"]
