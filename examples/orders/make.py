"""Makes the rows of this example: order sentences and what they say as JSON, seeded.

    python examples/orders/make.py        # writes train.jsonl and held_out.jsonl beside this file

Held-out rows have names, places and sentence patterns that no training row has: what is measured on them is
whether the model learned the task, not the rows.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

ITEMS = (
    "pizza", "sandwich", "salad", "coffee", "soup", "burger", "taco", "pancake", "smoothie", "omelette",
    "muffin", "noodle bowl",
)  # fmt: skip
SIZES = ("small", "medium", "large")

COUNTS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


SYLLABLES = words(
    "ba be bi bo da den di do el fa fer ga gil ha hel im is jo ka kel la len li lo ma mel mi mo na nel ni or"
    " pa per qui ra ren ri ro sa sel si so ta tel ti tor ul va vel vi wen xa ya zan zi"
)
NAMES = words(
    "Anna Ben Carla David Elena Felix Grace Hugo Irene James Karin Liam Maria Noah Olga Paul Rosa "
    "Simon Tara Victor Wendy Yusuf Zoe Amir Bianca Cedric Dora Emil Abigail Adrian Agnes Alba Alfredo "
    "Alina Ambrose Anders Angelica Anton Ariel Arjun Aurora Beatrix Bernard Birgit Boris Brigid "
    "Calvin Camille Casper Celeste Chidi Cleo Conrad Cora Cyrus Dagmar Damian Darius Delphine Desmond "
    "Dimitra Dominic Edith Edgar Eduardo Eileen Ekaterina Elias Eloise Enrico Erika Eugene Fabian "
    "Fatima Fiona Florence Francisco Freya Gareth Georgia Gerard Giulia Greta Gustav Hana Harold "
    "Hassan Hedwig Helene Hiroshi Ibrahim Ida Ignacio Ingrid Iris Isaac Ivan Jacqueline Jamila Jasper "
    "Jean Jiro Johanna Jonas Joyce Judith Julian Kai Kamal Katrin Keiko Kenneth Lara Leila Leonard "
    "Lidia Lorenzo Lucia Ludwig Mabel Magnus Malik Manuel Marek Marta Matteo Meera Miguel Mirjam "
    "Monique Naomi Natasha Nikolai Nora Octavia Odette Omar Orlando Pamela Pascal Patricia Pedro "
    "Petra Philippa Quentin Rafael Ramona Raymond Regina Renata Roberto Rowan Sabrina Salma Samuel "
    "Sandra Santiago Selma Sergei Silvia Sofia Stefan Susanna Svetlana Takeshi Tatiana Theodor Thomas "
    "Ulrich Umberto Ursula Valerie Vanessa Veronica Viktor Vincent Walter Winifred Xavier Yasmin "
    "Yolanda Yvonne Zachary Zainab Astrid Bruno Clara Dmitri Esther Farid Gloria Henrik Isabel Joel "
    "Katya Marcus Nadia Oscar Priya Ruben"
)
CITIES = words(
    "Lisbon Oslo Prague Zurich Warsaw Seoul Lima Cairo Nairobi Aarhus Adelaide Amsterdam Ankara "
    "Antwerp Atlanta Auckland Bangkok Barcelona Basel Beirut Belfast Belgrade Bergen Bilbao Bologna "
    "Bordeaux Brasilia Bratislava Bremen Brisbane Bristol Brussels Bucharest Budapest Calgary "
    "Canberra Casablanca Cologne Copenhagen Cordoba Dallas Damascus Delhi Dresden Dubai Durban "
    "Edinburgh Florence Frankfurt Genoa Ghent Glasgow Granada Graz Hamburg Hanoi Havana Houston "
    "Istanbul Izmir Jakarta Johannesburg Karachi Kathmandu Kingston Kyoto Lagos Leeds Leipzig "
    "Liverpool Ljubljana Luxembourg Malaga Manchester Manila Marseille Melbourne Memphis Miami Minsk "
    "Montreal Mumbai Nagoya Naples Nashville Odessa Orlando Ottawa Palermo Philadelphia Phoenix Pisa "
    "Portland Quito Reykjavik Riga Rotterdam Salzburg Santiago Sapporo Sarajevo Shanghai Singapore "
    "Sofia Stockholm Strasbourg Stuttgart Taipei Tallinn Tampere Tbilisi Toulouse Trieste Tunis Turin "
    "Utrecht Valencia Vancouver Venice Verona Vilnius Wellington Winnipeg Zagreb Porto Helsinki "
    "Munich Seville Lyon Milan Geneva Krakow Seattle Austin Osaka Bogota Accra Perth"
)
TRAINING: dict[str, Sequence[str]] = {
    "names": NAMES,
    "cities": CITIES,
    "patterns": (
        "{name} from {city} would like {count} {size} {items}.",
        "Please send {count} {size} {items} to {name} in {city}.",
        "This is {name}. I need {count} {size} {items} delivered to {city}.",
        "Can I get {count} {size} {items}? My name is {name} and I live in {city}.",
        "Order for {name}, {city}: {count} {size} {items}.",
        "{count} {size} {items} for {name}, to be delivered in {city}.",
        "Hello, {name} here, calling from {city}. {count} {size} {items}, please.",
        "In {city}, {name} is waiting for {count} {size} {items}.",
        "I want {count} {items}, {size} ones, for {name} in {city}.",
        "My friend {name} in {city} asked for {count} {size} {items}.",
        "Could you bring {count} {size} {items} to {city}? The name is {name}.",
        "We have {name} on the line from {city}, ordering {count} {size} {items}.",
        "Deliver to {city}: {count} {size} {items}, under the name {name}.",
        "{name} wants {count} {items} in {size}, sent to {city}.",
    ),
}  # fmt: skip
HELD_OUT: dict[str, Sequence[str]] = {
    "names": words(
        "Alice Daniel Emma Frank Helen Henry Jack Julia Kevin Laura Lucas Mark Peter Robert Sarah Susan"
    ),
    "cities": words(
        "Athens Berlin Boston Chicago Denver Dublin London Madrid Paris Rome Sydney Tokyo Toronto Vienna"
    ),
    "patterns": (
        "{name} lives in {city} and is hungry: {count} {size} {items}, please.",
        "For the {city} office, book {count} {size} {items} in the name of {name}.",
        "Hi! {count} {size} {items} should go to {name}, who is in {city}.",
        "A customer called {name} ordered {count} {size} {items} for an address in {city}.",
        "Bring {name} {count} {size} {items}; the address is in {city}.",
        "From {city}: {name} is asking whether {count} {size} {items} can be sent today.",
    ),
}  # fmt: skip


def invented(draw: random.Random) -> str:
    """A word that is no name: what cannot be known has to be copied."""
    return "".join(draw.choice(SYLLABLES) for _ in range(draw.choice((2, 3)))).capitalize()


def row(words: dict[str, Sequence[str]], draw: random.Random, made_up: float) -> dict[str, object]:
    """One conversation; that share of names and places is made up."""
    name, city = (
        invented(draw) if draw.random() < made_up else draw.choice(words[kind])
        for kind in ("names", "cities")
    )
    count = draw.randrange(len(COUNTS))
    item = draw.choice(ITEMS)
    order = {
        "name": name,
        "city": city,
        "item": item,
        "size": draw.choice(SIZES),
        "count": count + 1,
    }
    sentence = draw.choice(words["patterns"]).format(
        name=order["name"], city=order["city"], size=order["size"], count=COUNTS[count],
        items=item if count == 0 else plural(item),
    )  # fmt: skip
    asked = sentence[0].upper() + sentence[1:]
    answer = json.dumps(order)
    return {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]}


def plural(item: str) -> str:
    if item.endswith("sandwich"):
        return item + "es"
    return item[:-1] + "oes" if item.endswith("to") else item + "s"


def rows(words: dict[str, Sequence[str]], count: int, seed: int, made_up: float) -> list[str]:
    """So many rows, no two alike, as lines."""
    draw, lines = random.Random(seed), dict[str, None]()
    while len(lines) < count:
        lines[json.dumps(row(words, draw, made_up), ensure_ascii=False)] = None
    return list(lines)


def main() -> None:
    here = Path(__file__).parent
    for name, words, count, seed, made_up in (
        ("train", TRAINING, 300, 1, 0.5),
        ("held_out", HELD_OUT, 60, 2, 0),
    ):
        lines = rows(words, count, seed, made_up)
        (here / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
