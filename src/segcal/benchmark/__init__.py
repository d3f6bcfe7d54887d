"""Studies: datasets × methods × seeds, trained, evaluated and compared.

run_benchmark(plan, out)    run a study; `segcal benchmark`
load_plan(file)             read and check a plan
BenchmarkStudy              the runs of a study and how they ended
"""

from segcal.core.checks import require_app

require_app(__name__)

from segcal.benchmark.benchmark_study import BenchmarkStudy
from segcal.benchmark.demo import prepare_demo, run_demo
from segcal.benchmark.plan import Plan, load_plan
from segcal.benchmark.runner import run_benchmark
from segcal.benchmark.task_matrix import list_runs

__all__ = [
    "BenchmarkStudy", "Plan", "list_runs", "load_plan", "prepare_demo", "run_benchmark", "run_demo",
]  # fmt: skip
