"""The parser of verbs that parse their arguments themselves."""

import argparse
from collections.abc import Sequence
from typing import final


@final
class WordParser(argparse.ArgumentParser):
    """A parser whose description is shown as it is written, and whose errors are ValueErrors."""

    def __init__(self, program: str, usage: str, description: str, epilog: str = "") -> None:
        super().__init__(
            program,
            f"{program} {usage}",
            description,
            epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            exit_on_error=False,
            allow_abbrev=False,
        )

    def parse(self, arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """Return the parsed arguments, and those that are not known."""
        try:
            return self.parse_known_args(arguments)
        except argparse.ArgumentError as error:
            raise ValueError(f"{error}: see {self.prog} --help") from error
