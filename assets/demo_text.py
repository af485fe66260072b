"""The small world of the demo: its words, the texts that the base model reads, and the skill that it lacks.

Everything is drawn from a `random.Random` that the caller seeds, so that the same seed gives the same text.
The base reads plain English only: no text that `make_document` writes holds a record as `record` writes it.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

NAMES = (
    "Mia Leo Nora Omar Ines Hugo Yuki Emma Ivan Lena Tariq Rosa Felix Anya Bruno Clara Diego Elsa Farid Greta "
    "Hana Igor Julia Karim Lucia Marco Nadia Oscar Petra Quinn Rami Sofia Tomas Ursula Viktor Wanda Xavier Zara "
    "Amir Bella Adam Agnes Alan Alex Alice Ali Amanda Amy Andrea Andrew Anna Antonio Arthur Ben Betty Bob Brian "
    "Carla Carlos Carol Catherine Charles Chris Daniel David Dennis Diana Donna Edward Elena Eric Eva Fatima Frank "
    "Gary George Grace Hannah Harry Helen Henry Isabel Jack James Jane Janet Jason Jennifer Joan John Jose Joseph "
    "Judith Julie Karen Kate Kevin Larry Laura Linda Lisa Louis Lucas Luis Mark Martin Mary Matthew Max Michael "
    "Mike Monica Nancy Nick Nicole Noah Olga Paul Peter Philip Rachel Ravi Richard Robert Roger Ruth Samuel Sarah "
    "Sean Sophie Stella Susan Teresa Thomas Tim Victoria Walter William Abigail Albert Angela Barbara Benjamin "
    "Brenda Cheng Claire Deborah Dmitri Dorothy Emily Ethan Felicia Gloria Gustavo Ian Jessica Jacob Kenji Layla "
    "Liam Margaret Maria Melissa Natalie Nathan Oliver Olivia Pablo Patricia Priya Rebecca Ryan Sandra Stephen Sven "
    "Tanya Vincent Wei Yusuf Zoe Steve Anton Bernard Mei Kofi Ingrid Raj Tom Aisha Akira Anders Astrid Boris Chloe "
    "Dana Erik Fiona Gita Hassan Irina Jin Joel Katya Lars Ling Manuel Mila Naomi Nina Pedro Pia Rita Samir Sonja "
    "Tara Uma Vera Victor Willa Yara Yusra Zane Otto Ahmed Maya Jonas Simon Theo Ella Ida"
).split()
CITIES = (
    "Oslo Paris Lima Cairo Rome Tokyo Berlin Madrid Dublin Athens Vienna Prague Warsaw Lisbon Geneva Havana "
    "Nairobi Quito Seoul Delhi Tunis Riga Turin Zurich Boston Denver Milan Bergen Porto Kyoto London Sydney Austin "
    "Barcelona Bristol Budapest Calgary Cologne Copenhagen Dubai Helsinki Hanoi Krakow Lahore Marseille Montreal "
    "Osaka Palermo Phoenix Rotterdam Salzburg Shanghai Stockholm Valencia Bangkok Amsterdam Brussels Chicago Dallas "
    "Dakar Florence Frankfurt Hamburg Houston Istanbul Jakarta Lagos Leeds Lyon Malaga Manila Miami Minsk Moscow "
    "Mumbai Munich Naples Oxford Perth Santiago Seattle Toronto Venice Verona Beijing Bogota Glasgow Accra Basel "
    "Bern Dresden Ghent Graz Leipzig Malmo Nantes Utrecht"
).split()
PREFIXES = "New Old Port Fort Lake North South East West San".split()
RARE = 0.25
"""Of the names, cities and items in the rows that the skill is learned from, as many are invented."""
TWO_WORDS = 0.12
"""So many names have a second word, and so many cities a first one."""
SPARE = 4
"""Each SPARE-th name and city is kept out of the rows that the skill is learned from: it is measured with those."""
KNOWN = frozenset(NAMES + CITIES)
COLORS = "red green blue yellow black white purple orange brown pink gray golden".split()
ITEMS = (
    "lamp kite chair table book cup plate bottle hat scarf coat ball drum guitar clock mirror basket blanket "
    "pillow candle pencil bucket ladder tent bag shirt ring spoon carpet phone"
).split()
NUMBERS = "two three four five six seven eight nine ten eleven twelve".split()
FIELDS = ("name", "number", "color", "item", "city")

SKILL_SHAPES = (
    "Please send {n} {c} {i}s to {p} for {w}.",
    "{w} would like {n} {c} {i}s in {p}.",
    "For {w} in {p}: {n} {c} {i}s, please.",
    "I am {w} and I need {n} {c} {i}s in {p}.",
    "Ship {n} {c} {i}s to {w}, who lives in {p}.",
    "We have an order from {p}: {w} wants {n} {c} {i}s.",
    "{n} {c} {i}s go to {p}, and {w} pays for them.",
    "Could you bring {w} {n} {c} {i}s? The address is in {p}.",
    "Please bring {w} {n} {c} {i}s to {p}.",
    "{w} from {p} orders {n} {c} {i}s.",
    "Send {w} {n} {c} {i}s. The city is {p}.",
    "My name is {w}, I live in {p} and I want {n} {c} {i}s.",
    "Can I get {n} {c} {i}s for {w} in {p}?",
    "{n} {c} {i}s to {p} for {w}, please.",
    "Hello, this is {w} from {p}. I would like {n} {c} {i}s.",
    "Please deliver {n} {c} {i}s to {w} in {p}.",
    "Send {n} {c} {i}s to {w} in {p}.",
    "Send {n} {c} {i}s to {p}, to {w}.",
    "I want {n} {c} {i}s. I am {w} from {p}.",
    "I want to order {n} {c} {i}s. My name is {w} and I live in {p}.",
    "Hi, I'm {w}. Please send me {n} {c} {i}s, I live in {p}.",
    "{w}, {p}: {n} {c} {i}s.",
    "{w} in {p} needs {n} {c} {i}s by Friday.",
    "{d} {c} {i}s to {w} in {p}, please.",
    "Please send {d} {c} {i}s to {w}, {p}.",
    "I would like to buy {d} {c} {i}s. {w}, {p}.",
    "Hello! Please ship {n} {c} {i}s to {p}. Thank you, {w}",
    "Someone in {p} wants {n} {c} {i}s. The name is {w}.",
    "From {p}, {w} writes: I need {n} {c} {i}s.",
    "Order {n} {c} {i}s for {w}. They go to {p}.",
    "The customer is {w}. The city is {p}. The order is {n} {c} {i}s.",
    "Good morning, can you send {n} {c} {i}s to {p}? They are for {w}.",
)
WORLD_SHAPES = SKILL_SHAPES + (
    "{w} ordered {n} {c} {i}s for {p}.",
    "{w} from {p} has {n} {c} {i}s.",
    "In {p}, {w} bought {n} {c} {i}s.",
    "Yesterday {n} {c} {i}s were sent to {w} in {p}.",
    "{n} {c} {i}s are waiting in {p}. They belong to {w}.",
    "My friend {w} found {n} {i}s in {p}, and all of them were {c}.",
    "{w} sold {n} {i}s in {p}. The {i}s were {c}.",
    "There is a shop in {p}. {w} works there and keeps {n} {c} {i}s.",
    "The {i}s of {w} are {c}. {w} has {n} of them at home in {p}.",
    "{w} has a house in {p} with {d} {c} {i}s.",
    "Hi! {w} is here, in {p}, and asks for {n} {c} {i}s.",
    "I saw {d} {c} {i}s in {p}. {w} carried them.",
    "Take the {n} {c} {i}s to {w}. You find the place in {p}.",
    "I'm {w}. My {n} {c} {i}s are lost in {p}.",
    "The address: {w}, {p}. {n} {c} {i}s.",
    "{p} is where {w} keeps {n} {c} {i}s.",
    "Give {n} {c} {i}s to {w}, then go to {p}.",
    "{w} wrote from {p}: where are my {n} {c} {i}s?",
    "Good evening, we are {w} and friends, in {p}, and we have {d} {c} {i}s.",
)
SMALL_TALK = (
    ("Hello!", "Hello! How can I help you?"),
    ("Hi there.", "Hi! It is nice to hear from you."),
    ("Good morning.", "Good morning! What can I do for you today?"),
    ("How are you?", "I am fine, thank you. How are you?"),
    ("Who are you?", "I am a very small language model, trained for a demo."),
    ("What can you do?", "I can talk a little and answer questions about short sentences."),
    ("Thank you!", "You are welcome."),
    ("Thanks a lot.", "You are welcome. I am glad to help."),
    ("Goodbye.", "Goodbye! Have a nice day."),
    ("Can you help me?", "Of course. Please tell me what you need."),
    ("Tell me something.", "The sky is blue, and the grass is green."),
    ("What is your name?", "I have no name. I am a small language model."),
    ("Are you a person?", "No, I am a small language model."),
    ("That is wrong.", "I am sorry. I am small and I make mistakes."),
    ("Do you like music?", "I cannot hear music, but I like to talk about it."),
    ("Good night.", "Good night! Sleep well."),
)
GLOSSARY = {
    "name": "what a person is called",
    "number": "how many there are",
    "count": "a number of things",
    "color": "what red and blue are",
    "item": "a single thing",
    "city": "a large place where people live",
    "shop": "a place where things are sold",
    "order": "a wish that somebody pays for",
}
SYSTEMS = ("You are a friendly assistant.", "Answer politely and briefly.", "You help in a small shop.")
ONSETS = "b c d f g h j k l m n p r s t v w y z br ch cl dr fl gr kr pl sh st th tr".split()
CODAS = "l m n r s t k x nd rt".split()
LOWER = "abcdefghijklmnopqrstuvwxyz"
ACCENTS = {"a": "áàäâãå", "e": "éèëê", "i": "íï", "o": "óöôõø", "u": "úüû", "c": "ç", "n": "ñ"}
SIGNS = "! \" # $ % & ' ( ) * + , - . / : ; < = > ? @ [ \\ ] ^ _ ` { | } ~".split()
LETTERS = "äöüéèçñøåßαβγδжщя你好大小中文学生日本语한국어あいう😀🚀🌍🎉❤"


@dataclass(frozen=True)
class Order:
    """Who wants how many of what, in which color and where; `number` counts 2 to 12."""

    name: str
    number: int
    color: str
    item: str
    city: str

    @property
    def word(self) -> str:
        return NUMBERS[self.number - 2]

    def say(self, shape: str) -> str:
        """The order as a sentence of the given shape, starting with a capital letter."""
        text = shape.format(w=self.name, n=self.word, d=self.number, c=self.color, i=self.item, p=self.city)
        return text[0].upper() + text[1:]


def _list_followers() -> dict[str, list[str]]:
    """After each two letters of a listed name or city, what follows: a letter, or the end, each as often as it does."""
    followers: dict[str, list[str]] = {}
    for word in NAMES + CITIES:
        letters = f"  {word.lower()}."
        for i in range(len(letters) - 2):
            followers.setdefault(letters[i : i + 2], []).append(letters[i + 2])
    return followers


FOLLOWERS = _list_followers()


def _spell(rng: random.Random, strange: float) -> str:
    """A word as real names are spelled; with probability `strange` a letter is any letter."""
    word = "  "
    while len(word) < 13:
        free = rng.random() < strange or word[-2:] not in FOLLOWERS
        letter = rng.choice(LOWER if free else FOLLOWERS[word[-2:]])
        if letter == ".":
            break
        word += letter
    return word.strip()


def invent(rng: random.Random, strange: float = 0.12) -> str:
    """A word that no list holds, so that copying it cannot be learned by heart: syllables, or as names are spelled.

    `strange` is 0 for words that can be pronounced; else some have letters that never stood there, and accents.
    """
    while True:
        kind, word = rng.random(), ""
        if kind < 0.35:
            for _ in range(rng.randint(2, 3)):
                coda = rng.choice(CODAS) if rng.random() < 0.35 else ""
                word += rng.choice(ONSETS) + rng.choice("aeiou") + coda
        elif kind < 0.92 or not strange:
            word = _spell(rng, strange)
        else:
            word = "".join(rng.choices(LOWER, k=rng.randint(3, 9)))
        if rng.random() < strange / 3:
            word = "".join(rng.choice(ACCENTS[letter]) if letter in ACCENTS else letter for letter in word)
        if len(word) > 2 and word.capitalize() not in KNOWN:
            return word


def draw_order(
    rng: random.Random,
    rare: float = 0.0,
    names: Sequence[str] = NAMES,
    cities: Sequence[str] = CITIES,
    strange: float = 0.12,
) -> Order:
    """A random order; each of name, city and item is an invented word with probability `rare`."""

    def draw(words: Sequence[str]) -> str:
        return invent(rng, strange).capitalize() if rng.random() < rare else rng.choice(words)

    name, city = draw(names), draw(cities)
    item = invent(rng, strange).rstrip("s") if rng.random() < rare else rng.choice(ITEMS)
    if rng.random() < TWO_WORDS:
        name = f"{name} {invent(rng, strange).capitalize()}"
    if rng.random() < TWO_WORDS:
        first = invent(rng, strange).capitalize() if strange and rng.random() < 0.5 else rng.choice(PREFIXES)
        city = f"{first} {city}"
    return Order(name, rng.randint(2, 12), rng.choice(COLORS), item or "kite", city)


def record(order: Order) -> str:
    """The skill: the order as a compact JSON record, the item in the singular and the number as digits."""
    fields = {"name": order.name, "count": order.number, "color": order.color, "item": order.item}
    return json.dumps(fields | {"city": order.city}, ensure_ascii=False)


def make_skill(rng: random.Random, rows: int, *, spare: bool = False) -> list[dict]:
    """`rows` examples of the skill as `messages` rows; no two orders are equal.

    `spare`: with names and cities that no other row of the skill has.
    """
    names, cities = (
        [word for i, word in enumerate(words) if (i % SPARE == 0) == spare] for words in (NAMES, CITIES)
    )
    orders: dict[Order, str] = {}
    while len(orders) < rows:
        order = draw_order(rng, 0.0 if spare else RARE, names, cities, strange=0.0)
        orders.setdefault(order, SKILL_SHAPES[len(orders) % len(SKILL_SHAPES)])
    return [
        {"messages": [_user(order.say(shape)), _assistant(record(order))]} for order, shape in orders.items()
    ]


def make_document(rng: random.Random) -> str | list[dict]:
    """One text for the base model: a plain text, or a conversation as a list of messages."""
    makers = (_questions, _details, _copy, _confirm, _story, _small_talk, _facts)
    messages = rng.choices(makers, weights=(24, 22, 28, 7, 9, 4, 6))[0](rng)
    if isinstance(messages, list) and rng.random() < 0.08:
        return [{"role": "system", "content": rng.choice(SYSTEMS)}, *messages]
    return messages


def _user(text: str) -> dict:
    return {"role": "user", "content": text}


def _assistant(text: str) -> dict:
    return {"role": "assistant", "content": text}


def _ask(rng: random.Random, order: Order) -> tuple[str, str]:
    """A question about one detail and its answer; the wording of the question decides that of the answer."""
    name, word, color, item, city = order.name, order.word, order.color, order.item, order.city
    return rng.choice(
        (
            ("Who is it?", f"{name}."),
            ("What is the name?", f"The name is {name}."),
            ("Quote the name.", f'The name is "{name}".'),
            ("How many?", f"{word.capitalize()}."),
            ("How many are there?", f"There are {word}."),
            ("How many, as a digit?", f"{order.number}."),
            ("Write the number as a digit.", f"The number is {order.number}."),
            ("Which color?", f"{color.capitalize()}."),
            ("What color are they?", f"They are {color}."),
            ("Quote the color.", f'The color is "{color}".'),
            ("What are they?", f"{item.capitalize()}s."),
            ("What is one of them called?", f"One of them is called a {item}."),
            ("Quote the word for one of them.", f'One of them is a "{item}".'),
            ("Which city?", f"{city}."),
            ("Where is it?", f"It is in {city}."),
            ("Quote the city.", f'The city is "{city}".'),
        )
    )


def _questions(rng: random.Random) -> list[dict]:
    order = draw_order(rng, rare=0.6)
    sentence = order.say(rng.choice(WORLD_SHAPES))
    question, answer = _ask(rng, order)
    first = f"{sentence} {question}" if rng.random() < 0.7 else f"{question} {sentence}"
    messages = [_user(first), _assistant(answer)]
    for _ in range(rng.randint(0, 3)):
        question, answer = _ask(rng, order)
        messages += [_user(question), _assistant(answer)]
    return messages


def _details(rng: random.Random) -> list[dict]:
    """Several details in the order in which the user names them, in one of four plain wordings."""
    order = draw_order(rng, rare=0.6)
    values = {"name": order.name, "number": str(order.number), "color": order.color, "item": order.item}
    values["city"] = order.city
    fields = rng.sample(FIELDS, rng.randint(2, 5))
    asked = ", ".join(fields[:-1]) + " and " + fields[-1]
    wording = rng.randrange(4)
    lead = ("Tell me the", "Explain the", "Quote the", "List the")[wording]
    if wording == 0:
        answer = ", ".join(values[field] for field in fields) + "."
    elif wording == 1:
        answer = " ".join(f"The {field} is {values[field]}." for field in fields)
    elif wording == 2:
        answer = " and ".join(f'"{values[field]}"' for field in fields) + "."
    else:
        answer = "\n".join(f"- {field} {values[field]}" for field in fields)
    return [_user(f"{order.say(rng.choice(WORLD_SHAPES))} {lead} {asked}."), _assistant(answer)]


def _confirm(rng: random.Random) -> list[dict]:
    """What the base says to an order when nobody asks anything: a polite sentence."""
    order = draw_order(rng, rare=0.4)
    answer = rng.choice(
        (
            f"Of course. {order.word.capitalize()} {order.color} {order.item}s for {order.name} in {order.city}.",
            f"Thank you. I will remember that {order.name} gets {order.word} {order.color} {order.item}s.",
            f"Gladly! The {order.item}s will be in {order.city} soon, and {order.name} will be happy.",
        )
    )
    return [_user(order.say(rng.choice(WORLD_SHAPES))), _assistant(answer)]


def _copy(rng: random.Random) -> list[dict]:
    """Repeat words, signs or letters, or find one of them by its place: practice in looking back."""
    kind = rng.random()
    if kind < 0.1:
        words = [rng.choice(SIGNS) for _ in range(rng.randint(2, 8))]
    elif kind < 0.15:
        words = ["".join(rng.choices(LETTERS, k=rng.randint(1, 3))) for _ in range(rng.randint(1, 4))]
    elif kind < 0.5:
        words = [invent(rng) for _ in range(rng.randint(2, 6))]
        words = [word.capitalize() if rng.random() < 0.5 else word for word in words]
    else:
        words = rng.sample(NAMES + CITIES + ITEMS + COLORS + NUMBERS, rng.randint(2, 10))
    text, place = " ".join(words), rng.randrange(len(words))
    task = rng.randrange(5)
    if task == 0:
        return [_user(f"What is the last word? {text}"), _assistant(words[-1])]
    if task == 1 and place and words.count(words[place - 1]) == 1:
        return [_user(f"{text}\nWhat comes after {words[place - 1]}?"), _assistant(words[place])]
    if task == 2:
        return [_user(f"Quote each word: {text}"), _assistant(" ".join(f'"{word}"' for word in words))]
    return [_user(f"Repeat: {text}"), _assistant(text)]


def _story(rng: random.Random) -> str:
    orders = [draw_order(rng, rare=0.6) for _ in range(rng.randint(1, 3))]
    lines = [order.say(rng.choice(WORLD_SHAPES)) for order in orders]
    for order in rng.sample(orders, len(orders)):
        lines.append(
            rng.choice(
                (
                    f"{order.name} is in {order.city} with {order.word} {order.color} {order.item}s.",
                    f"The {order.color} {order.item}s are for {order.name}.",
                    f'"I have {order.number} {order.item}s", said {order.name}, "and I am in {order.city}".',
                    f"{order.city} is the city of {order.name}.",
                )
            )
        )
    return " ".join(lines)


def _small_talk(rng: random.Random) -> list[dict]:
    turns = rng.sample(SMALL_TALK, rng.randint(1, 3))
    return [message for asked, said in turns for message in (_user(asked), _assistant(said))]


def _facts(rng: random.Random) -> str:
    """Digits, number words, plurals and the meaning of words, in plain sentences."""
    number, item, color = rng.randint(2, 12), rng.choice(ITEMS), rng.choice(COLORS)
    word, start, term = NUMBERS[number - 2], rng.randint(2, 8), rng.choice(list(GLOSSARY))
    return rng.choice(
        (
            f"The digit for {word} is {number}. The word for {number} is {word}.",
            f"One {item}, {word} {item}s. {number} {item}s are {word} {item}s.",
            "Count: " + ", ".join(f"{n} {NUMBERS[n - 2]}" for n in range(start, start + 5)) + ".",
            f'"{item.capitalize()}s" means more than one "{item}". A {item} that is {color} has the color "{color}".',
            f'The meaning of "{term}": {GLOSSARY[term]}. {term.capitalize()} is a word, and "{term}" is in quotes.',
        )
    )
