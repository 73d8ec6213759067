#!/usr/bin/env python3
"""Short English stories that state facts, with questions whose answers depend on them.

    python3 tools/stories.py --sample 5                                   # look at some
    python3 tools/stories.py --test 60 --lengths 50,200,500 --out FOLDER  # an evaluation set, JSON lines

A story says who put what where, who gave what to whom, who went where, what changed since, and much that does not
matter. Everything follows from a seed. Training and test stories never share a combination of person, object and place
(or giver, object and receiver): see held_out(). Standard library only; tools/train_story_model.py imports it.
"""

import argparse
import json
import os
import random
import zlib

import story_words as words

# Training stories have more words, wordings and kinds of questions than test stories, and their random draws are their
# own: what a test set holds depends on its seed only, whatever is added for training.
TRAIN, TEST = "train", "test"


def held_out(*parts) -> bool:
    """Whether a combination belongs to the test stories: one in eight, by a hash that every machine computes alike."""
    return zlib.crc32("|".join(parts).encode()) % 8 == 0


def upper(text: str) -> str:
    return text[0].upper() + text[1:]


class Person:
    def __init__(self, name, gender):
        self.name = name
        self.he, self.his, self.him = {"f": ("she", "her", "her"), "m": ("he", "his", "him")}[gender]


class Thing:
    """An object: `the` is its noun phrase ("the red ball", "Anna's book"), `noun` names it in held-out combinations."""

    def __init__(self, the, a, noun, plural):
        self.the, self.a, self.noun = the, a, noun
        self.be, self.was, self.it = ("are", "were", "them") if plural else ("is", "was", "it")


class Place:
    """A place: `at` says where ("in the kitchen"), `to` how to get there, or "" where nobody walks ("on the shelf")."""

    def __init__(self, at, to, bare):
        self.at, self.to, self.bare = at, to, bare


class Story:
    """Grows sentence by sentence and keeps what is true, so that it can ask."""

    def __init__(self, rng: random.Random, mode: str, size: int):
        self.rng, self.mode = rng, mode
        self.rare = rng.choice((0.05, 0.05, 0.3)) if mode == TRAIN else 0.05  # share of invented words
        scale = max(1.0, size / 60.0)
        self.people = self._people(rng.randint(2, int(min(16, 3 + scale**0.6))))
        self.places = [self._place() for _ in range(rng.randint(3, int(min(24, 4 + scale**0.7))))]
        self.things = []
        self.max_things = rng.randint(2, int(min(45, 3 + scale**0.85)))
        self.busy = rng.uniform(0.2, 1.0)  # share of the things that keep changing their whereabouts
        self.where = {}  # thing -> ("at", Place, Person or None, by motion) or ("held", Person)
        self.changes = {}  # thing -> how often its whereabouts were stated
        self.before = {}  # thing -> Place that it left
        self.placed_by = {}  # (thing, at) -> people
        self.visitors = {}  # noun phrase of a place -> things that ever were there
        self.gifts = []  # (giver, thing, receiver)
        self.whereabouts = {}  # person -> (Place, moved) or None if only implied
        self.facts = {}  # (person, kind) -> value
        self.asked = set()
        self.subject = None  # the thing, or what else, that the last question was about
        self.dull = rng.uniform(0.1, 0.6)  # share of sentences that do not matter
        # Some training stories are more about people than about where things are put.
        self.still = rng.choice((1.0, 1.0, 0.4)) if mode == TRAIN else 1
        self.plain = rng.random() < 0.3  # no adverbs, no commas
        self.last = None  # (person, thing) of the sentence before, for pronouns

    # -- what there is in the story ------------------------------------------------------------------------------------

    def _wide(self, share) -> bool:
        """Whether to leave the words and wordings of the test stories; never in a test story."""
        return self.mode == TRAIN and self.rng.random() < share

    def _invented(self) -> str:
        if self._wide(0.5):
            letters = "".join(self.rng.choice("bcdfghjklmnprstvwz") + self.rng.choice("aeiou") for _ in range(2))
            return letters + self.rng.choice(("", "n", "r", "ck", "st", "ffle", "d", "ber", "t", "sh"))
        return "".join(self.rng.choice(words.SYLLABLES) for _ in range(self.rng.randint(2, 3)))

    def _people(self, count):
        rng, people, taken = self.rng, [], set()
        while len(people) < count:
            gender = rng.choice("fm")
            name = rng.choice(words.WOMEN if gender == "f" else words.MEN)
            if rng.random() < 0.06:
                name = upper(self._invented())
            elif self._wide(0.12):
                gender, name = rng.choice(words.ROLES)
                if "{V}" in name:
                    name = name.format(V=rng.choice(words.FAMILY_NAMES))
            if name not in taken:
                taken.add(name)
                people.append(Person(name, gender))
        return people

    def _place(self):
        rng = self.rng
        if rng.random() < 0.62:
            at, noun = rng.choice(words.ROOMS)
            if rng.random() < self.rare:
                at, noun = "in", self._invented()
            elif self._wide(0.2):
                at, noun = rng.choice(words.MORE_ROOMS)
            if rng.random() < 0.08:
                noun = rng.choice(words.PLACE_ADJECTIVES) + " " + noun
            return Place(f"{at} the {noun}", f"to the {noun}", f"the {noun}")
        ats, noun = rng.choice(words.MORE_SPOTS if self._wide(0.25) else words.SPOTS)
        at = f"{rng.choice(ats.split('|'))} the {noun}"
        if rng.random() < 0.15:
            room_at, room = rng.choice(words.ROOMS)
            at += f" {room_at} the {room}"
        return Place(at, "", f"the {noun}")

    def _new_thing(self):
        rng = self.rng
        for _ in range(20):
            plural = rng.random() < 0.12
            noun = rng.choice(words.PLURALS if plural else words.THINGS)
            if rng.random() < self.rare:
                noun, plural = self._invented(), False
            elif not plural and self._wide(0.35):
                noun = rng.choice(words.MORE_THINGS)
            phrase = noun
            # Siblings ("the red ball" and "the blue ball") make the adjective matter.
            if self.things and rng.random() < 0.25:
                other = rng.choice(self.things)
                phrase = noun = other.noun
                plural = other.be == "are"
            draw = rng.random()
            if draw < 0.5:
                phrase = rng.choice(words.MORE_ADJECTIVES if self._wide(0.3) else words.ADJECTIVES) + " " + noun
            elif draw < 0.56:
                phrase = rng.choice(words.SIZES) + " " + rng.choice(words.COLOURS) + " " + noun
            a = ("some " if plural else "an " if phrase[0] in "aeiou" else "a ") + phrase
            the = "the " + phrase
            if draw > 0.92:
                owner = rng.choice(self.people).name
                the = a = f"{owner}'s {noun}"
            if all(the != t.the and not t.the.endswith(" " + phrase) and not the.endswith(t.the[3:]) for t in self.things):
                thing = Thing(the, a, noun, plural)
                self.things.append(thing)
                return thing
        return None

    def _thing(self):
        if len(self.things) < self.max_things and (len(self.things) < 2 or self.rng.random() < 0.35):
            return self._new_thing() or self.rng.choice(self.things)
        if self.rng.random() < 0.9:
            return self.things[self.rng.randrange(1 + int(self.busy * (len(self.things) - 1)))]
        return self.rng.choice(self.things)

    def _allowed(self, *parts) -> bool:
        return held_out(*parts) == (self.mode == TEST)

    def _pick_place(self, person, thing, walk):
        name = person.name if person else ""
        current = self.where.get(thing)
        for attempt in range(64):
            place = self._place() if attempt > 8 else self.rng.choice(self.places)
            if walk and not place.to or (current and current[0] == "at" and current[1].at == place.at):
                continue
            if thing is None or self._allowed(name, thing.noun, place.bare):
                return place
        return None

    def _people_but(self, *others):
        rest = [p for p in self.people if p not in others]
        return self.rng.choice(rest) if rest else None

    # -- sentences that change what is true ----------------------------------------------------------------------------

    def _wording(self, name):
        more = words.MORE_WORDINGS.get(name) if self._wide(0.25) else None
        return self.rng.choice(more or getattr(words, name))

    def _opening(self, sentence):
        if self.plain or self.rng.random() < 0.6:
            return upper(sentence)
        return self.rng.choice(words.OPENINGS) + sentence

    def _ending(self):
        if self.plain or self.rng.random() < 0.75:
            return "."
        return " " + self.rng.choice(words.ENDINGS) + "."

    def _leave(self, thing):
        old = self.where.get(thing)
        self.before[thing] = old[1] if old and old[0] == "at" else None
        self.changes[thing] = self.changes.get(thing, 0) + 1

    def _say_at(self):
        """Something is somewhere: put, carried, or simply stated."""
        rng = self.rng
        draw = rng.random()
        pronoun = ""
        if self.last and draw < 0.16 and self.last[1]:
            person, thing = self.last
            if person and draw < 0.1:
                pronoun = person.he
            else:
                person = rng.choice(self.people)
                pronoun = person.name
        else:
            thing, person = self._thing(), rng.choice(self.people)
        held = self.where.get(thing)
        if held and held[0] == "held" and rng.random() < 0.8:
            if pronoun and held[1] is not person:
                pronoun = held[1].name
            person = held[1]
        stated = not pronoun and not (held and held[0] == "held") and rng.random() < 0.12
        if stated:
            person = None
        walk = rng.random() < 0.5 and not stated
        place = self._pick_place(person, thing, walk)
        if place is None:
            return None
        fresh = thing not in self.where
        if stated:
            template = self._wording("STATED_FIRST" if fresh else "STATED_AGAIN")
            text = upper(template.format(O=thing.the, A=thing.a, L=place.at, be=thing.be, was=thing.was))
        else:
            if pronoun:
                template = rng.choice(words.CARRY_AGAIN if walk else words.PUT_AGAIN)
            else:
                template = self._wording("CARRY" if walk else "PUT")
            who, what, to = pronoun or person.name, thing.the, place.to
            if fresh and template.startswith("{P}"):  # "a ball", "her ball"
                first = rng.random()
                if first < 0.2:
                    what = thing.a
                elif first < 0.3 and what.startswith("the "):
                    what = person.his + what[3:]
            if place.at.startswith("in ") and rng.random() < 0.2:
                to = "into" + to[2:]
            text = template.format(
                P=who, O=what, L=place.at, T=to, B=place.bare, it=thing.it, he=person.he, He=upper(person.he),
                his=person.his, was=thing.was)  # fmt: skip
            text = self._opening(text) + self._ending()
            # Who takes something to a room is there; test stories do not ask for that.
            there = self.mode == TRAIN and place.to and template.startswith("{P}") and not words.SENT.search(template)
            self.whereabouts[person] = (place, False) if there else None
            self.placed_by.setdefault((thing, place.at), set()).add(person)
        self._leave(thing)
        self.where[thing] = ("at", place, person, walk)
        for noun in place.at.split("the ")[1:]:
            self.visitors.setdefault(noun.split(" in ")[0].split(" at ")[0].split(" on ")[0].strip(), set()).add(thing)
        self.last = (person, thing)
        return text

    def _say_hold(self):
        rng = self.rng
        thing, person = self._thing(), rng.choice(self.people)
        old = self.where.get(thing)
        if old and old[0] == "held" and old[1] is person or not self._allowed(person.name, thing.noun, "has"):
            return None
        if old and old[0] == "at" and old[1].to and rng.random() < 0.3:
            text = rng.choice(words.HOLD_FROM).format(P=person.name, O=thing.the, B=old[1].bare)
        else:
            template = self._wording("HOLD_FIRST" if old is None else "HOLD")
            text = template.format(P=person.name, O=thing.the, A=thing.a, it=thing.it, his=person.his)
        self._leave(thing)
        self.where[thing] = ("held", person)
        if self.mode == TEST or old:  # it may have lain elsewhere
            self.whereabouts[person] = None
        self.last = (person, thing)
        return self._opening(text) + self._ending()

    def _say_give(self):
        rng = self.rng
        held = [t for t in self.things if t in self.where and self.where[t][0] == "held"]
        thing = rng.choice(held) if held and rng.random() < 0.8 else self._thing()
        if self.last and self.last[1] and rng.random() < 0.3:
            thing = self.last[1]
        old = self.where.get(thing)
        giver = old[1] if old and old[0] == "held" else rng.choice(self.people)
        again = self.last == (giver, thing) and rng.random() < 0.6
        receiver = self._people_but(giver)
        if receiver is None or not self._allowed(giver.name, thing.noun, receiver.name):
            return None
        if again:
            text = rng.choice(words.GIVE_AGAIN).format(P=giver.he, Q=receiver.name, it=thing.it)
        else:
            text = self._wording("GIVE").format(P=giver.name, Q=receiver.name, O=thing.the, it=thing.it)
        self._leave(thing)
        self.where[thing] = ("held", receiver)
        self.gifts.append((giver, thing, receiver))
        self.last = None
        return self._opening(text) + self._ending()

    def _say_go(self):
        rng = self.rng
        person = rng.choice(self.people)
        place = self._pick_place(None, None, True)
        old = self.whereabouts.get(person)
        if place is None or old and old[0].at == place.at or not self._allowed(person.name, "went", place.bare):
            return None
        moved = rng.random() < 0.8
        other = self._people_but(person)
        if moved and other and rng.random() < 0.12 and self._allowed(other.name, "went", place.bare):
            self.whereabouts[person] = self.whereabouts[other] = (place, True)
            self.last = None
            text = rng.choice(words.GO_TOGETHER).format(P=person.name, Q=other.name, T=place.to)
            return self._opening(text) + self._ending()
        who = person.name
        if self.last and self.last[0] is person and moved and rng.random() < 0.5:
            who = "then " + person.he
        text = self._wording("GO" if moved else "STAY").format(P=who, L=place.at, T=place.to)
        self.whereabouts[person] = (place, moved)
        self.last = (person, None)
        return self._opening(text) + self._ending() if who == person.name else upper(text) + "."

    def _say_fact(self):
        rng = self.rng
        person = rng.choice(self.people)
        kind = rng.choice(list(words.FACTS))
        values, first, again, _, _ = words.FACTS[kind]
        value = rng.choice(values)
        if self.facts.get((person, kind)) == value or not self._allowed(person.name, kind, value):
            return None
        template = rng.choice(again if (person, kind) in self.facts else first)
        self.facts[(person, kind)] = value
        self.last = None
        return upper(template.format(P=person.name, V=value))

    def _say_nothing(self):
        """A sentence that changes nothing, though it may name people, things and places of the story."""
        rng = self.rng
        self.last = None
        if rng.random() < 0.45:
            return rng.choice(words.SMALL_TALK)
        person = rng.choice(self.people)
        other = self._people_but(person)
        template = rng.choice(words.DISTRACTORS)
        if "{O}" in template and not self.where:
            return rng.choice(words.SMALL_TALK)
        thing = rng.choice(list(self.where)) if self.where else None
        room = rng.choice(words.ROOMS)[1]
        text = template.format(
            P=person.name, Q=other.name if other else "a friend", O=thing.the if thing else "", he=person.he,
            his=person.his, him=person.him, R=room, be=thing.be if thing else "is", F=rng.choice(words.FOODS),
            N=rng.choice(words.THINGS))  # fmt: skip
        return upper(text)

    def sentence(self) -> str:
        rng = self.rng
        while True:
            if rng.random() < self.dull and self.where:
                return self._say_nothing()
            draw = rng.random() ** self.still
            say = (
                self._say_at if draw < 0.58 else
                self._say_hold if draw < 0.66 else
                self._say_give if draw < 0.77 else
                self._say_go if draw < 0.88 else self._say_fact)  # fmt: skip
            text = say()
            if text:
                return text

    # -- questions -----------------------------------------------------------------------------------------------------

    def _ask_thing(self):
        rng = self.rng
        thing = rng.choice(list(self.where))
        state = self.where[thing]
        key = (thing, self.changes[thing])
        kind = "where" if self.changes[thing] == 1 else "moved"
        if state[0] == "held":
            person = state[1]
            answer = f"{person.name} has {thing.the}."
            mine = [t for t, s in self.where.items() if s[0] == "held" and s[1] is person]
            if len(mine) == 1 and rng.random() < 0.2:
                return kind, key, f"What does {person.name} have?", answer
            if rng.random() < 0.3:
                return kind, key, self._wording("ASK_WHERE").format(O=thing.the, be=thing.be), answer
            return kind, key, self._wording("ASK_WHO_HAS").format(O=thing.the, be=thing.be), answer
        _, place, person, _ = state
        answer = upper(f"{thing.the} {thing.be} {place.at}.")
        draw = rng.random()
        if draw < 0.12:
            # The answer says first where it is: to be sure, one has to find it before one can compare.
            truth = rng.random() < 0.5
            other = self.before.get(thing) or rng.choice(self.places)
            guess = place.at if truth or other.at == place.at else other.at
            verdict = ", yes." if guess == place.at else f", not {guess}."
            return kind, key, f"{upper(thing.be)} {thing.the} {guess}?", answer[:-1] + verdict
        if draw < 0.24 and person and len(self.placed_by[(thing, place.at)]) == 1:
            form = f"{thing.the} {place.to}" if place.to and rng.random() < 0.5 else f"{thing.the} {place.at}"
            verb = "took" if " to the " in form else "put"
            return kind, key + ("who",), f"Who {verb} {form}?", f"{person.name} {verb} {form}."
        if draw < 0.32 and person:
            return kind, key, f"Where did {person.name} put {thing.the}?", f"{person.name} put {thing.the} {place.at}."
        return kind, key, self._wording("ASK_WHERE").format(O=thing.the, be=thing.be), answer

    def _alone(self, thing):
        """Whether this thing is the only one that ever was where it is now."""
        place = self.where[thing][1]
        return self.visitors.get(place.bare[4:]) == {thing} and place.at.count("the ") == 1

    def inverse_question(self):
        """From the place to the thing, the other way round than stories tell it; None if no place has one thing only."""
        found = [t for t, s in self.where.items() if s[0] == "at" and self._alone(t)]
        if not found:
            return None
        thing = self.rng.choice(found)
        at = self.where[thing][1].at
        return "inverse", f"What is {at}?", upper(f"{thing.the} {thing.be} {at}.")

    def _ask_inverse(self):
        """What or who is at a place, in training."""
        if self.rng.random() < 0.75:
            kind, question, answer = self.inverse_question() or (None, "", "")
            at = question[len("What is ") : -1]
            return kind and (kind, (at, answer), self._wording("ASK_WHAT").format(L=at), answer)
        known = [(person, state[0].at) for person, state in self.whereabouts.items() if state]
        person, at = self.rng.choice(known) if known else (None, None)
        maybe = {p for (_, where), people in self.placed_by.items() for p in people if where == at}
        others = [p for p in self.people if p is not person and self.whereabouts.get(p) is None]
        if not known or sum(where == at for _, where in known) > 1 or maybe.intersection(others):
            return None
        question = self.rng.choice(("Who is {L}?", "Who is {L}?", "Who is {L} now?", "Which person is {L}?"))
        return "inverse", (person, at), question.format(L=at), f"{person.name} is {at}."

    def _ask_person(self):
        known = [p for p, w in self.whereabouts.items() if w]
        if not known:
            return None
        person = self.rng.choice(known)
        place, moved = self.whereabouts[person]
        key = (person, place.at)
        if moved and self.rng.random() < 0.3:
            return "person", key, f"Where did {person.name} go?", f"{person.name} went {place.to}."
        question = self._wording("ASK_PERSON").format(P=person.name)
        return "person", key, question, f"{person.name} is {place.at}."

    def _ask_gift(self):
        if not self.gifts:
            return None
        giver, thing, receiver = gift = self.rng.choice(self.gifts)
        answer = f"{giver.name} gave {thing.the} to {receiver.name}."
        draw = self.rng.random()
        if draw < 0.34:
            alike = {g for g in self.gifts if g[1] is thing and g[2] is receiver}
            question = f"Who gave {thing.the} to {receiver.name}?"
        elif draw < 0.67:
            alike = {g for g in self.gifts if g[0] is giver and g[2] is receiver}
            question = f"What did {giver.name} give to {receiver.name}?"
        else:
            alike = {g for g in self.gifts if g[0] is giver and g[1] is thing}
            question = f"Who did {giver.name} give {thing.the} to?"
        return ("gift", (gift, draw < 0.34), question, answer) if len(alike) == 1 else None

    def _ask_fact(self):
        if not self.facts:
            return None
        (person, kind), value = self.rng.choice(list(self.facts.items()))
        _, _, _, questions, answer = words.FACTS[kind]
        question = self.rng.choice(questions).format(P=person.name)
        return "fact", (person, kind, value), question, answer.format(P=person.name, V=value)

    def question(self):
        """(kind, question, answer), or None if the story has nothing left to ask that was not asked before."""
        for _ in range(12):
            draw = self.rng.random()
            if self.mode == TRAIN and self.rng.random() < 0.2:
                found = self._ask_inverse()
            elif draw < 0.72 and self.where:
                found = self._ask_thing()
            else:
                found = (self._ask_person if draw < 0.82 else self._ask_gift if draw < 0.92 else self._ask_fact)()
            if found and (found[1] not in self.asked or self.rng.random() < 0.03):
                self.asked.add(found[1])
                self.subject = found[1][0]
                return found[0], found[2], upper(found[3])
        return None


def arithmetic(rng: random.Random, mode: str):
    """(question, answer): sums, differences and products of small numbers, and counting in words."""
    while True:
        a, b = rng.randint(0, 99), rng.randint(0, 99)
        if rng.random() < 0.4:
            a, b = rng.randint(0, 20), rng.randint(0, 20)
        kind = rng.choice(("plus", "plus", "minus", "times", "more", "less"))
        if kind in ("minus", "less"):
            a, b = max(a, b), min(a, b)
        elif kind == "times":
            a, b = rng.randint(0, 12), rng.randint(0, 12)
        if held_out(str(a), kind, str(b)) != (mode == TEST):
            continue
        if kind in ("more", "less"):
            person = rng.choice(words.WOMEN + words.MEN)
            other = rng.choice(words.WOMEN + words.MEN)
            noun = rng.choice(words.COUNTED)
            if person == other:
                continue
            a, b = a + 2, max(b, 2)
            if kind == "more":
                text = rng.choice(words.MORE)
                total = a + b
            else:
                text = rng.choice(words.LESS)
                total = a - b
                if total < 0:
                    continue
            text = text.format(P=person, Q=other, a=a, b=b, n=noun)
            return f"{text} How many {noun} does {person} have now?", f"{person} has {total} {noun}."
        value = {"plus": a + b, "minus": a - b, "times": a * b}[kind]
        if rng.random() < 0.2:
            sign = {"plus": "+", "minus": "-", "times": "*"}[kind]
            return f"What is {a} {sign} {b}?", f"{a} {sign} {b} is {value}."
        return rng.choice(words.ASK_SUM).format(a=a, b=b, op=kind), f"{a} {kind} {b} is {value}."


def estimate(text: str) -> int:
    """About how many tokens: words, and marks at their ends."""
    return text.count(" ") + text.count(".") + text.count(",") + text.count("?") + text.count("'") + 1


# How a question and its answer are set: (before the question, between question and answer, chance). What follows a "?"
# in the answer's own part starts with a space, unless the prompt ended in a space or newline.
STYLES = (
    ("", " ", 55),
    ("", "\n", 22),
    ("Question: ", "\nAnswer: ", 9),
    ("Q: ", "\nA: ", 5),
    ("Question: ", " Answer: ", 4),
    ("", "trail", 5),
)
STYLE_WEIGHTS = [s[2] for s in STYLES]


def training_document(rng: random.Random, size: int):
    """[(text, is_answer)]: a story of about `size` tokens with questions in it and after it. The parts are tokenized
    one by one, as a prompt and what a model appends to it are."""
    story = Story(rng, TRAIN, size)
    parts, text = [], ""
    style = rng.choices(STYLES, STYLE_WEIGHTS)[0]
    lines = rng.choice((0.0, 0.0, 0.0, 0.1, 1.0))  # how often a sentence starts a new line
    before_question = rng.choice((" ", " ", "\n", "\n\n"))
    kind = rng.random()
    between = 0.0 if kind < 0.5 else rng.choice((0.05, 0.15, 0.3))
    sums = 0.02 if rng.random() < 0.9 else 0.5
    joined = rng.choice((0.0, 0.0, 0.15))  # how often two sentences become one
    used = 0
    reserve = 24 * rng.randint(1, max(1, min(48, size // 60)))

    def ask():
        nonlocal text, used, style
        if rng.random() < 0.1:
            style = rng.choices(STYLES, STYLE_WEIGHTS)[0]
        if rng.random() < sums:
            question, answer = arithmetic(rng, TRAIN)
        else:
            found = story.question() if story.where else None
            if not found:
                return False
            _, question, answer = found
        head, tail, _ = style
        prompt = (text + before_question if text else "") + head + question
        if tail == " ":
            answer = " " + answer
        elif tail == "trail":
            prompt += " "
        elif tail == "\n":
            prompt += tail
        else:
            prompt += tail[:-1]
            answer = " " + answer
        parts.append((prompt, False))
        parts.append((answer, True))
        used += estimate(prompt) + estimate(answer) + 2
        text = rng.choice(("\n", "", "")) if rng.random() < 0.5 else ""
        return True

    if rng.random() < 0.02:  # arithmetic alone
        sums = 1.0
        while used < size - 24:
            ask()
        return parts
    while used + estimate(text) < size - reserve:
        sentence = story.sentence()
        if rng.random() < joined and text.endswith(".") and sentence.endswith("."):
            name = sentence.startswith(tuple(upper(person.name) for person in story.people))
            text = text[:-1] + rng.choice(words.JOINTS)
            text += sentence if name and not sentence.startswith("The ") else sentence[0].lower() + sentence[1:]
            continue
        text += ("\n" if text and rng.random() < lines else " " if text or parts else "") + sentence
        if between and story.where and rng.random() < between:
            ask()
            text = text or rng.choice(("", "\n"))
    misses = 0
    while used + estimate(text) < size - 8 and misses < 3:
        misses += not ask()
    return parts


def test_story(rng: random.Random, size: int, inverse=False):
    """(kind, prompt, answer): about `size` tokens, one question at the end, on combinations that training never saw.
    Inverse questions ("What is in the kitchen?") are a set of their own."""
    while True:
        story = Story(rng, TEST, size)
        text = ""
        while estimate(text) < size - 10:
            text += (" " if text else "") + story.sentence()
        if not story.where:
            continue
        found = story.inverse_question() if inverse else story.question()
        if found:
            kind, question, answer = found
            return kind, text + " " + question, answer


def test_set(seed: int, count: int, size: int):
    for index in range(count):
        rng = random.Random(f"test {seed} {size} {index}")
        kind, prompt, answer = test_story(rng, size)
        yield {"prompt": prompt, "answer": answer, "tokens": estimate(prompt), "kind": kind}


def inverse_set(seed: int, count: int):
    for index in range(count):
        rng = random.Random(f"inverse {seed} {index}")
        kind, prompt, answer = test_story(rng, (50, 200, 500, 1000)[index % 4], inverse=True)
        yield {"prompt": prompt, "answer": answer, "tokens": estimate(prompt), "kind": kind}


def sums_set(seed: int, count: int):
    for index in range(count):
        question, answer = arithmetic(random.Random(f"sums {seed} {index}"), TEST)
        yield {"prompt": question, "answer": answer, "tokens": estimate(question), "kind": "sum"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--sample", type=int, default=0, help="print this many training documents")
    parser.add_argument("--size", type=int, default=120, help="tokens of a sample")
    parser.add_argument("--test", type=int, default=0, help="stories per length of an evaluation set")
    parser.add_argument("--lengths", default="50,200,500,1000,2000,4000", help="tokens, or tokens:stories")
    parser.add_argument("--tokenizer", help="tokenizer.json, to count tokens exactly (needs the package tokenizers)")
    parser.add_argument("--out", default=".", help="folder of the evaluation set")
    options = parser.parse_args()
    for index in range(options.sample):
        parts = training_document(random.Random(f"train {options.seed} {index}"), options.size)
        print("".join(f"[{text}]" if answer else text for text, answer in parts), end="\n-----\n")
    if options.test:
        os.makedirs(options.out, exist_ok=True)
        tokenizer = None
        if options.tokenizer:
            import tokenizers

            tokenizer = tokenizers.Tokenizer.from_file(options.tokenizer)
        sets = {}
        for length in options.lengths.split(","):
            length, _, count = length.partition(":")
            sets[f"stories-{length}"] = test_set(options.seed, int(count or options.test), int(length))
        sets["inverse"] = inverse_set(options.seed, options.test)
        sets["sums"] = sums_set(options.seed, options.test)
        for name, rows in sets.items():
            with open(os.path.join(options.out, name + ".jsonl"), "w", encoding="utf-8") as file:
                for row in rows:
                    if tokenizer:
                        row["tokens"] = len(tokenizer.encode(row["prompt"], add_special_tokens=False).ids)
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
