"""The tables of published.csv that the report prints, with the treatments behind their numbers and ours."""

from dataclasses import dataclass

OURS = "2 layers, 2 heads, d = 64, mean pooling, the best of the evaluations on dev"
SMALL = f"{OURS}: what protocol=paper does too"
WITHOUT_PATH_X = "Our averages are over the five tasks without Path-X (pathfinder_x)."


@dataclass(frozen=True, kw_only=True)
class Paper:
    """A table of published.csv.

    Args:
        name: stem of its files.
        title: of the table in the report.
        sources: papers, by the name before the bracket, and their tables; several stand one below the other.
        protocol: the treatment behind its numbers.
        unlike: the differences of ours.
        metric: of our rows that are compared with it.
    """

    name: str
    title: str
    sources: tuple[tuple[str, str], ...]
    protocol: str
    unlike: str
    metric: str = "accuracy"


PAPERS = (
    Paper(
        name="curformer-table-1",
        title="CURformer, Table 1: accuracy",
        sources=(("CURformer", "Table 1"),),
        protocol=f"CURformer: {SMALL}, 64 rows and columns kept, mean of 5 runs. The other lines are quoted from "
        "papers with models and training of their own (Mega has 4 to 8 layers).",
        unlike="The released script for ListOps trains longer, 20,000 steps of 128 (experiment=curformer_listops); "
        "the paper does not say which one it used. Printed averages partly count a sixth task; ours are over five.",
    ),
    Paper(
        name="curformer-table-2",
        title="CURformer, Table 2: speed-up and peak memory relative to the Transformer",
        sources=(("CURformer", "Table 2"),),
        protocol="Length, batch and hardware are not stated with the table; Transformer = 1.",
        unlike="whole training steps against attn=softmax of the same study, task and device, geometric means "
        "over the tasks that both have; memory only on a GPU, which counts it. Of memory the lowest is bold.",
    ),
    Paper(
        name="curformer-table-4",
        title="CURformer, Table 4: ways to select rows and columns (transposed)",
        sources=(("CURformer", "Table 4"),),
        protocol=f"{SMALL}, mean and spread of 5 runs.",
        unlike="As in Table 1. The spreads printed for Pathfinder look like fractions, not percentage points, and "
        "the printed averages are (sum of the five + 50) / 6; ours are over the five.",
    ),
    Paper(
        name="soft-table-12",
        title="SOFT, Table 12: accuracy",
        sources=(("SOFT/SOFT++", "Table 12"),),
        protocol=f"{SMALL} (that of Xiong et al. 2021, from which all lines but SOFT are quoted).",
        unlike="Pathfinder is left out, and so it is from our averages. Number of seeds, padding and iterations of "
        "SOFT are not stated.",
    ),
    Paper(
        name="psf-table-2",
        title="PSF-Attn, Table 2: ROC-AUC of predicted classes (balanced accuracy)",
        sources=(("PSF-Attn", "Table 2"),),
        protocol="PSF-Attn: one block, the others up to 4 layers, d = 32, constant learning rate. Which epoch's test "
        "score is printed is not said.",
        unlike="The best of the evaluations on dev. Runs with task.metric=balanced_accuracy stand here, as "
        "experiment=psf_genome has it; task=genome itself has roc_auc, of scores.",
        metric="balanced_accuracy",
    ),
    Paper(
        name="psf-table-3",
        title="PSF-Attn, Table 3: accuracy",
        sources=(("PSF-Attn", "Table 3"),),
        protocol="PSF-Attn: one block of its own sizes for each task, constant learning rate, mean and deviation of "
        "4 seeds, the best of the evaluations on test. The other lines are quoted from the papers they name.",
        unlike="Ours never chooses on test (but for Text, where protocol=paper makes it the dev set). PSF trains Image "
        "on all 50,000 pictures, mixes the three difficulties of Pathfinder, and reads 4,096 bytes of Text.",
    ),
    Paper(
        name="leaderboard",
        title="Long Range Arena, official leaderboard: accuracy",
        sources=(("Long Range Arena", "leaderboard"),),
        protocol="Up to 6 layers and d = 512, sizes and schedule set for each task and partly for each mechanism, "
        "one run, the final weights. Its Retrieval lies 20 points below that of later papers, and the released "
        "images of Path-X are reported faulty (docs/published.md).",
        unlike="One small encoder for every task and mechanism, and the best of the evaluations on dev. "
        f"{WITHOUT_PATH_X} Printed ones are, too.",
    ),
    Paper(
        name="state-space",
        title="State-space models and linear recurrences: accuracy",
        sources=(
            ("MEGA", "Table 2"),
            ("Mamba-360", "LRA"),
            ("LRU", "Table 3"),
            ("RTF", "Table 1"),
            ("MEGALODON", "LRA"),
            ("LION", "Table 7"),
            ("xLSTM", "Table 6"),
        ),
        protocol="4 to 8 layers, d = 64 to 512, tens to hundreds of epochs, sizes and rates set for each task. The "
        "column run names the source, FAIL is chance.",
        unlike=f"{OURS}; a feed-forward layer behind each mixer, which most of these do not have, unless block=glu. "
        f"{WITHOUT_PATH_X} Printed ones count six tasks.",
    ),
    Paper(
        name="self-pretraining",
        title="Self-pretraining on the inputs of the task: accuracy",
        sources=(("Self-pretraining", "LRA"),),
        protocol="3 to 6 layers, d = 64 to 512; pretrained to fill in masked inputs (or to predict the next) on the "
        "training set of the task itself, then trained. Most lines are recalled, as their notes say.",
        unlike=f"{OURS}. {WITHOUT_PATH_X} Printed ones count six tasks.",
    ),
    Paper(
        name="flare-table-6",
        title="FLARE++, Table 6 (2026): accuracy",
        sources=(("FLARE++", "Table 6"),),
        protocol="One backbone of FLARE's authors in which the mixer is exchanged, or the number of Hedgehog's paper, "
        "which mostly repeats the leaderboard and Nystromformer; notes say which.",
        unlike=f"{OURS}.",
    ),
    Paper(
        name="later-baselines",
        title="Later baselines: accuracy",
        sources=(("FNet", "LRA"), ("H-Transformer-1D", "LRA"), ("HGRN", "LRA"), ("Hrrformer", "LRA"), ("ZETA", "LRA")),
        protocol="Each its authors' own sizes and training; most were read in other papers, as their notes say.",
        unlike=f"{OURS}.",
    ),
)
