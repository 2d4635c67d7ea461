# SPDX-License-Identifier: MIT
"""Writes examples/data/classification_{train,heldout}.csv: short notices on four topics, no sentence twice.

Usage: make_classification_sample.py [repository root]
"""
import csv
import pathlib
import random
import sys

ROOT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")

# topic -> (openings, subjects, happenings, endings)
TOPICS = {
    "cooking": (
        ["In the kitchen of the inn", "For supper", "At the village feast", "On the second burner", "My aunt says",
         "The recipe is plain:", "For six guests", "\"Taste before you salt,\" said the cook:"],
        ["the onion soup", "a loaf of rye bread", "the plum dumplings", "her saffron rice", "the fish pie", "a pot of lentils",
         "the crème brûlée", "roast pumpkin"],
        ["simmers, covered, for an hour", "needs a pinch of nutmeg", "is baked until golden", "is served with butter and dill",
         "burned at the bottom", "rests before it is sliced", "is stirred with a wooden spoon"],
        ["and smells of thyme.", "while the oven cools.", "so the dough can rise.", "and everybody asks for more.",
         "with a glass of cider."]),
    "sailing": (
        ["Off the cape", "Before dawn", "In a stiff north wind", "Under full sail", "Three miles from the harbour",
         "The log reads:", "At slack water", "\"Ready about,\" called the mate:"],
        ["the schooner", "our small sloop", "the ferry to Pell", "a racing yacht", "the pilot boat", "the old trawler",
         "the training ship", "her dinghy"],
        ["dropped anchor in the bay", "lost her rudder, then her jib", "tacked past the buoy", "took in two reefs",
         "ran aground at low tide", "rounded the lighthouse first", "drifted without wind"],
        ["as the tide turned.", "and the crew manned the pumps.", "with the mainsail torn.", "bound for Orvanta.",
         "while gulls circled the mast."]),
    "gardening": (
        ["Behind the greenhouse", "After the last frost", "In sandy soil", "Along the south wall", "Early in May",
         "The nursery advises:", "Between the rows", "\"Water in the evening,\" wrote the gardener:"],
        ["the climbing roses", "our tomato seedlings", "a young pear tree", "the lavender hedge", "her tulip bulbs",
         "the broad beans", "a bed of peonies", "the rhubarb"],
        ["wanted compost, not more water", "suffered from greenfly", "put out new shoots", "should be pruned hard",
         "flowered twice", "were covered with straw mulch", "grew through the trellis"],
        ["and the hedgehogs helped with the slugs.", "once the roots had settled.", "so the weeds stayed away.",
         "in the shade of the lime.", "after a week of rain."]),
    "astronomy": (
        ["Through a small telescope", "Shortly after dusk", "From the observatory on the ridge", "On a moonless night",
         "Low in the west", "The almanac says:", "With the new camera", "\"Let your eyes adapt,\" said the guide:"],
        ["the rings of Saturn", "a faint comet", "the Andromeda galaxy", "Jupiter and its moons", "a double star in Lyra",
         "the Orion nebula", "the crater Tycho", "a bright meteor"],
        ["came into view at ninety times", "passed close to the Pleiades", "was fainter than predicted", "showed a bluish halo",
         "crossed the meridian at nine", "was eclipsed, briefly, by the Moon", "was measured with a spectrograph"],
        ["although the seeing was poor.", "and its orbit was computed again.", "in the light of the zodiac.",
         "many light years from here.", "before the dome was closed."]),
}

random.seed(20)
rows = []
for label, parts in sorted(TOPICS.items()):
    seen = set()
    while len(seen) < 125:
        text = " ".join(random.choice(part) for part in parts)
        seen.add(text[0].upper() + text[1:])
    rows += [(text, label) for text in sorted(seen)]
random.shuffle(rows)
for name, part in (("train", rows[:400]), ("heldout", rows[400:])):
    out = ROOT / f"examples/data/classification_{name}.csv"
    with open(out, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["text", "label"])
        writer.writerows(part)
    print(f"{out}: {len(part)} rows")
