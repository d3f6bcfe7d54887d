"""Studies: datasets × methods × seeds, trained, evaluated and compared.

run_benchmark(plan, out)    run a study; `segcal benchmark`
load_plan(file)             read and check a plan
BenchmarkStudy              the runs of a study and how they ended
"""

from segcal.core.checks import require_app

require_app(__name__)

from typing import TYPE_CHECKING

from segcal.core.lazy import lazy_exports

if TYPE_CHECKING:
    from segcal.benchmark.benchmark_study import BenchmarkStudy
    from segcal.benchmark.demo import prepare_demo, run_demo
    from segcal.benchmark.plan import DatasetPlan, MethodPlan, Plan, load_plan
    from segcal.benchmark.runner import run_benchmark
    from segcal.benchmark.task_matrix import list_runs

__all__ = [
    "BenchmarkStudy",
    "DatasetPlan",
    "MethodPlan",
    "Plan",
    "list_runs",
    "load_plan",
    "prepare_demo",
    "run_benchmark",
    "run_demo",
]

# A worker process checks that its parent is alive before it imports the rest.
__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "BenchmarkStudy": "segcal.benchmark.benchmark_study",
        "DatasetPlan": "segcal.benchmark.plan",
        "MethodPlan": "segcal.benchmark.plan",
        "Plan": "segcal.benchmark.plan",
        "load_plan": "segcal.benchmark.plan",
        "run_benchmark": "segcal.benchmark.runner",
        "list_runs": "segcal.benchmark.task_matrix",
        "prepare_demo": "segcal.benchmark.demo",
        "run_demo": "segcal.benchmark.demo",
    },
)
