"""Instructions that papers put before the texts of a task, to be copied into `extraction.template.instruction`.

A template uses the text in its config as it is, and no name is looked up: copy `prompt`, with the blank at its end, or
give `text` as `extraction.template.task` of the template `instruct`.
"""

from dataclasses import dataclass

LBW_TABLE = "Look Both Ways, Table 3"
LBW_DOMAIN = "Look Both Ways, section 4.1"


@dataclass(frozen=True)
class Instruction:
    """What a paper puts before the texts of a task.

    Attributes:
        text: The instruction, quoted; empty where the paper uses none.
        source: Table or section of the paper.
        task: The task of `icecore list tasks` that it is for; empty where there is none.
    """

    text: str
    source: str = LBW_TABLE
    task: str = ""

    @property
    def prompt(self) -> str:
        """What the released code puts before a text (for retrieval before queries alone); empty for no instruction."""
        return f"Instruct: {self.text}\nQuery: " if self.text else ""


INSTRUCTIONS: dict[str, Instruction] = {
    "ArguAna": Instruction("Given a claim, find documents that refute the claim."),
    "NFCorpus": Instruction("Given a question, retrieve relevant documents that best answer the question."),
    "SciFact": Instruction("Given a scientific claim, retrieve documents that support or refute the claim."),
    "SciDocsRR": Instruction("Given a title of a scientific paper, retrieve the titles of other relevant papers."),
    "StackOverflowDupQuestions": Instruction("Retrieve duplicate questions from StackOverflow forum."),
    "BiorxivClusteringS2S": Instruction("Identify the main category of Biorxiv papers based on the titles."),
    "MedrxivClusteringS2S": Instruction("Identify the main category of Medrxiv papers based on the titles."),
    "SprintDuplicateQuestions": Instruction("Retrieve duplicate questions from Sprint forum."),
    "Banking77Classification": Instruction(
        "Given an online banking query, find the corresponding intents.", task="banking77"
    ),
    "EmotionClassification": Instruction(
        "Classify the emotion expressed in the given Twitter message into one of the six emotions: anger, fear, joy, "
        "love, sadness, and surprise."
    ),
    "MassiveIntentClassification": Instruction("Given a user utterance as query, find the user intents."),
    "STS": Instruction("Retrieve semantically similar text.", task="stsb"),
    "PubMedQA": Instruction("", LBW_DOMAIN, "pubmedqa"),
    "ChemProt": Instruction("", LBW_DOMAIN, "chemprot"),
    "MQP": Instruction("", LBW_DOMAIN, "mqp"),
    "RCT": Instruction("", LBW_DOMAIN, "rct"),
    "FPB": Instruction("", LBW_DOMAIN, "financial-phrasebank"),
    "FiQA-SA": Instruction("", LBW_DOMAIN, "fiqa-sa"),
    "NER": Instruction("", LBW_DOMAIN, "financial-ner"),
    "SCOTUS": Instruction("", LBW_DOMAIN, "scotus"),
    "UNFAIR-ToS": Instruction("", LBW_DOMAIN, "unfair-tos"),
}
"""Instructions by the name of the task in the paper; `STS` stands for all its STS tasks."""
