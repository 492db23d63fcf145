"""The one table of classification tasks: a new task is one loader and one row here."""

from probes.tasks.classes.finance import load_banking77, load_fiqa, load_phrasebank
from probes.tasks.classes.law import load_scotus, load_unfair_tos
from probes.tasks.classes.medicine import load_chemprot, load_mqp, load_pubmedqa, load_rct
from probes.tasks.classes.readers import load_class_hub, load_class_sample, read_class_files
from probes.tasks.classes.task import ClassTask
from probes.tasks.entries import TaskEntry, load_entry

ClassTaskEntry = TaskEntry[ClassTask]

_ENTRIES = tuple(
    ClassTaskEntry(name, description, "classes", load)
    for name, description, load in (
        ("class-sample", "sentences of six topics written for this project, no benchmark", load_class_sample),
        ("banking77", "Banking77 from its CSV files, 77 intents, accuracy", load_banking77),
        ("pubmedqa", "PubMedQA labelled set from its JSON files, yes/no/maybe, weighted F1", load_pubmedqa),
        ("chemprot", "ChemProt from its JSON Lines files, else the hub, 13 relations, weighted F1", load_chemprot),
        ("mqp", "medical question pairs from mqp.csv, similar or different, accuracy", load_mqp),
        ("rct", "PubMed 20k RCT from its text files, 5 parts of an abstract, weighted F1", load_rct),
        (
            "financial-phrasebank",
            "Financial PhraseBank from its text files, 3 sentiments, weighted F1",
            load_phrasebank,
        ),
        ("fiqa-sa", "FiQA sentiment from its JSON files, else the hub, 3 sentiments, weighted F1", load_fiqa),
        ("scotus", "LexGLUE SCOTUS, 13 issue areas, micro and macro F1", load_scotus),
        ("unfair-tos", "LexGLUE UNFAIR-ToS, 8 unfair terms or none, weighted F1", load_unfair_tos),
        ("class-files", "your own CSV, TSV, JSON Lines or Parquet files, by column names", read_class_files),
        ("class-hub", "a classification dataset of the hub, by column names", load_class_hub),
    )
)
CLASS_TASKS: dict[str, ClassTaskEntry] = {entry.name: entry for entry in _ENTRIES}


def load_class_task(name: str, /, **options: object) -> ClassTask:
    """Load a classification task of the table.

    Args:
        name: A key of `CLASS_TASKS`.
        options: The task's own options, plain values as they come from a YAML file.

    Returns:
        The task, checked.

    Raises:
        UnknownNameError: If the task or an option stands in no table.
        TaskError: If an option is missing or of the wrong kind, or the rows cannot be used.

    Example:
        >>> load_class_task("class-sample").is_sample
        True
    """
    return load_entry(CLASS_TASKS, name, options)
