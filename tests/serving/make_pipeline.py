"""Writes a small classifier of texts with random weights, and prints what it answers: ``make_pipeline.py FOLDER SEED``, with texts as JSON on stdin.

It runs beside the packages of hugging-face/. Its tokenizer knows ten words; nothing is downloaded.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch  # noqa: TID253 - it runs in its own environment
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast, pipeline

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "flight", "was", "late", "early"]
LONGEST = 16

folder = Path(sys.argv[1])
vocabulary = folder / "words.txt"
vocabulary.write_text("\n".join(WORDS))
torch.manual_seed(int(sys.argv[2]))
config = BertConfig(
    vocab_size=len(WORDS),
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=LONGEST,
    initializer_range=1.0,
    id2label={0: "early", 1: "late"},
    label2id={"early": 0, "late": 1},
)
tokenizer = BertTokenizerFast(vocab=str(vocabulary), model_max_length=LONGEST)
model = BertForSequenceClassification(config).eval()
texts = json.load(sys.stdin)
with torch.no_grad():  # so that random weights tell the texts apart
    logits = model(**tokenizer(texts, padding=True, truncation=True, return_tensors="pt")).logits
    model.classifier.bias -= logits.mean(0)
classifier = pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu")
classifier.save_pretrained(folder / "pipeline")
print(json.dumps(classifier(texts, truncation=True)))
