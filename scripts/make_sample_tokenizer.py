# SPDX-License-Identifier: MIT
"""Trains examples/data/tokenizer: byte-level BPE with BLOOM's pattern and special tokens, about 2,000 tokens.

Needs the `tokenizers` package. Run after the two sample data sets are made.
Usage: make_sample_tokenizer.py [repository root]
"""
import csv
import json
import pathlib
import sys

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

ROOT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
DATA = ROOT / "examples/data"
PATTERN = " ?[^(\\s|[.,!?…。，、।۔،])]+"
SPECIAL = ["<unk>", "<s>", "</s>", "<pad>"]

# Sentences in other scripts, so that the vocabulary holds more than Latin letters.
OTHER_SCRIPTS = """
Москва и река Волга, город на берегу. Что это такое? Где находится гора? Это хороший ответ на вопрос.
Η θάλασσα είναι βαθιά. Πού είναι το νησί; Η απάντηση είναι σωστή, η ερώτηση απλή.
المدينة على البحر، والجبل في الشمال. أين يقع النهر؟ هذا جواب جيد.
העיר על שפת הים. איפה נמצא ההר? זאת תשובה טובה.
नदी पहाड़ से निकलती है। शहर कहाँ है? यह एक अच्छा उत्तर है।
শহরটি নদীর তীরে। পাহাড় কোথায়? এটি একটি ভালো উত্তর।
河流从山上流下来，城市在海边。山在哪里？这是一个好问题。
川は山から流れ、町は海のそばにあります。山はどこですか。これはいい質問です。
강은 산에서 흐르고 도시는 바다 옆에 있습니다. 산은 어디에 있습니까?
แม่น้ำไหลจากภูเขา เมืองอยู่ริมทะเล ภูเขาอยู่ที่ไหน
Thành phố nằm bên bờ biển. Núi ở đâu? Đây là một câu trả lời tốt.
Şehir denizin kıyısında. Dağ nerede? Bu iyi bir cevap. Río, montaña, corazón; forêt, château, où? Straße, Größe, für.
"""


def texts():
    for article in json.loads((DATA / "squad_sample.json").read_text(encoding="utf-8"))["data"]:
        for paragraph in article["paragraphs"]:
            yield paragraph["context"]
            for qa in paragraph["qas"]:
                yield f"Question: {qa['question']}\nContext: "
                yield f"\nAnswer: {qa['answers'][0]['text']}"
    with open(DATA / "classification_train.csv", encoding="utf-8", newline="") as file:
        yield from (row["text"] for row in csv.DictReader(file))
    yield from OTHER_SCRIPTS.strip().splitlines() * 3


tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
    pre_tokenizers.Split(Regex(PATTERN), "isolated"),
    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
tokenizer.post_processor = processors.ByteLevel(add_prefix_space=True, trim_offsets=False, use_regex=False)
tokenizer.decoder = decoders.ByteLevel(add_prefix_space=True, trim_offsets=True, use_regex=False)
tokenizer.train_from_iterator(texts(), trainers.BpeTrainer(
    vocab_size=2000, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
folder = DATA / "tokenizer"
folder.mkdir(exist_ok=True)
tokenizer.save(str(folder / "tokenizer.json"))
config = {"add_prefix_space": False, "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>",
          "clean_up_tokenization_spaces": False, "model_max_length": 1000000000000000019884624838656,
          "padding_side": "right", "tokenizer_class": "PreTrainedTokenizerFast"}
(folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
print(f"{folder}: {tokenizer.get_vocab_size()} tokens")
