"""What a verb would do, with every value: printed, and nothing done."""

import pytest
import yaml

from likewise.cli import main


def test_a_sweep_prints_the_options_of_each_setting(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    settings = ["--setting", "a: --loss SupConLoss", "--setting", "b: --loss NTXentLoss --lr 0.1"]
    assert main(["sweep", "--print-config", "--seeds", "4,", *settings]) == 0
    one, other = yaml.safe_load_all(capsys.readouterr().out)
    assert [of["loss"]["class_path"].rpartition(".")[2] for of in (one, other)] == ["SupConLoss", "NTXentLoss"]
    assert [of["optimizer"]["init_args"]["lr"] for of in (one, other)] == [0.002, 0.1]
    assert one["seed"] == 4
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("verb", ["evaluate", "predict", "embed", "search", "export"])
def test_an_option_that_a_verb_lacks_is_not_proposed_to_it(verb, capsys):
    assert main([verb, "x", "--seed", "1"]) == 2
    assert "did you mean --seed" not in capsys.readouterr().err
