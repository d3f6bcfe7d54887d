from segcal.study.breakdown import BREAKDOWN_SHARE, LEARNED_DSC, broke_down


def test_a_breakdown_is_below_half_of_the_best_dsc() -> None:
    assert BREAKDOWN_SHARE == 0.5
    assert broke_down(0.39, best_dsc=0.8)
    assert not broke_down(0.4, best_dsc=0.8)


def test_a_network_that_never_learned_does_not_break_down() -> None:
    assert not broke_down(0.0, best_dsc=LEARNED_DSC - 0.01)
    assert broke_down(0.0, best_dsc=LEARNED_DSC)
