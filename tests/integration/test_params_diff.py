"""`dvc params diff` between two named budgets shows the norm and the epsilon behind the names."""

import pytest

from tests.integration.clone import Clone

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

PARAMS = """
seed: 0
device: cpu
data: {{source: digits, samples: {{n: 20}}}}
model: {{source: train}}
budgets: {{tight: {{norm: Linf, epsilon: 0.03}}, wide: {{norm: L2, epsilon: 0.5}}}}
budget: {name}
"""


def test_params_diff_shows_the_epsilon_behind_the_name_of_a_budget(tmp_path):
    clone = Clone(tmp_path)
    for name in ("tight", "wide"):
        clone.write_params(PARAMS.format(name=name))
        clone.run("dvc", "repro", "resolve")
        if name == "tight":
            clone.commit("tight")
    lines = [line.split() for line in clone.run("dvc", "params", "diff").splitlines()]
    file = "reports/resolved/budget.yaml"
    assert [file, "resolved.budget.epsilon", "0.03", "0.5"] in lines
    assert [file, "resolved.budget.norm", "Linf", "L2"] in lines
