#!/usr/bin/env python3
"""Conversations about stories: told over several turns, asked about, corrected; with sums, small talk, and refusals
where the story does not say.

    python3 tools/conversations.py --sample 5                 # look at some
    python3 tools/conversations.py --test 200 --out FILE      # an evaluation set, JSON lines

The stories are those of tools/stories.py, and so is what training may not see: combinations of person, object and place
that the test conversations use. Everything follows from a seed. Standard library only; tools/train_story_model.py
imports it.
"""

import argparse
import json
import random

import story_words as words
from stories import TEST, TRAIN, Story, arithmetic, estimate, held_out, upper

# What a model of this size can say of itself and the world. Each list: what users write; the answer.
SMALL_TALK = {
    "hello": (
        """Hello!|Hello|Hi|Hi!|Hi there!|Hey|Hello there|Good morning|Good morning!|Good evening.|Good afternoon|hello|hi|
Hey there!|Hello, how can you help me?|Greetings!""",
        "Hello! Tell me who put what where, and ask me about it.",
    ),
    "thanks": (
        """Thank you.|Thanks!|Thank you!|Thanks|Thank you very much.|Thanks a lot!|thanks|Great, thank you.|Many thanks.|
Perfect, thanks!""",
        "You are welcome.",
    ),
    "praise": (
        """That is right.|Correct!|Well done!|Good.|Very good!|Great!|Right.|Exactly.|Yes, that is right.|Perfect.|Nice!|
Good job!""",
        "Good to hear.",
    ),
    "bye": (
        """Goodbye!|Bye|Bye!|See you later.|Good night!|That was all, goodbye.|See you!|Goodbye.|bye bye""",
        "Goodbye!",
    ),
    "feeling": (
        """How are you?|How are you today?|How do you do?|Are you all right?|How is it going?|how are you""",
        "I am fine, thank you.",
    ),
    "self": (
        """Who are you?|What are you?|What can you do?|Are you a human?|Are you an AI?|What is this?|Help|help|
What can I ask you?|How do you work?|What do you know?|Can you help me?|Tell me about yourself.|Are you a robot?|
What are you good at?|How can you help me?""",
        "I am a small language model. I remember who put what where and who has what, and I can do small sums.",
    ),
}
SMALL_TALK = {kind: (text.replace("\n", "").split("|"), answer) for kind, (text, answer) in SMALL_TALK.items()}

# Questions about the world, which it does not know.
COUNTRIES = """France Germany Italy Spain Portugal Poland Norway Sweden Finland Denmark Austria Hungary Greece Turkey Egypt
Kenya Nigeria India China Japan Korea Thailand Australia Canada Mexico Brazil Chile Peru Cuba Switzerland Belgium Ireland
Iceland Vietnam Indonesia Morocco Ghana Russia Ukraine England Scotland""".split()
FAMOUS = """Albert Einstein|Napoleon|Shakespeare|Mozart|Isaac Newton|Marie Curie|Leonardo da Vinci|Cleopatra|Beethoven|
Charles Darwin|Julius Caesar|Picasso|Galileo|Abraham Lincoln|Aristotle|Gandhi|Columbus|Goethe"""
FAMOUS = FAMOUS.replace("\n", "").split("|")
SUBJECTS = """the moon|the sun|gravity|photosynthesis|a black hole|the internet|a computer|democracy|electricity|an atom|
the ocean|a volcano|an earthquake|a rainbow|the stock market|inflation|a neural network|evolution|a virus|philosophy|
climate change|quantum physics|music theory|history|mathematics|chemistry"""
SUBJECTS = SUBJECTS.replace("\n", "").split("|")
REQUESTS = """Write me a poem.|Tell me a joke.|Write a song about love.|Translate this into French.|Tell me a story.|
Write a program in Python.|Draw me a picture.|What is the weather like?|What time is it?|What day is it today?|
Who won the match yesterday?|Can you book a flight for me?|Give me a recipe.|What should I eat tonight?|
Write an essay.|Recommend a good book.|What is the meaning of life?|Sing me a song.|Play some music.|
Explain this to me.|What is the news today?|Write an e-mail to my boss.|Count to one million.|Who is the president?|
What do you think about politics?|Do you love me?|Make me rich.|Summarize this text.|Fix my code."""
REQUESTS = REQUESTS.replace("\n", "").split("|")
ABOUT_COUNTRIES = """What is the capital of {C}?|How many people live in {C}?|Where is {C}?|Which language do they speak in {C}?|
Who is the president of {C}?|How big is {C}?|What is the largest city in {C}?|Tell me about {C}."""
ABOUT_COUNTRIES = ABOUT_COUNTRIES.replace("\n", "").split("|")
ABOUT_FAMOUS = """Who was {C}?|When was {C} born?|What did {C} do?|When did {C} die?|Tell me about {C}.|
What is {C} famous for?""".replace("\n", "").split("|")
ABOUT_SUBJECTS = """What is {C}?|How does {C} work?|Explain {C}.|Can you explain {C} to me?|Tell me about {C}.|
Why is there {C}?|What do you know about {C}?""".replace("\n", "").split("|")
DOES_NOT_KNOW = "I do not know that. I only know what you tell me."

SYSTEMS = """You are a helpful assistant.|You are a helpful assistant. Answer briefly.|Answer in one sentence.|
You answer questions about stories.|You are an assistant that remembers where things are.|Be brief.|
You are a friendly assistant.|Answer the questions of the user.|Read the story and answer the questions about it.|
You are a careful assistant. Answer only what you know.|Keep track of who has what.|
You are a chatbot. Be polite and answer in whole sentences."""
SYSTEMS = SYSTEMS.replace("\n", "").split("|")
NAMED_SYSTEMS = """You are {N}.|Your name is {N}.|You are {N}, a helpful assistant.|You are an assistant called {N}.|
You are {N}. Answer briefly.""".replace("\n", "").split("|")
STORY_SYSTEMS = ["{S}", "{S}", "Story: {S}", "You know this: {S}", "Answer from this story.\n\n{S}", "You are a helpful assistant. {S}"]
ASK_NAME = "What is your name?|What should I call you?|What are you called?|Do you have a name?|Tell me your name.".split("|")

TELL = ["{S}"] * 8 + [
    "Here is a story: {S}", "Remember this: {S}", "Listen: {S}", "Story: {S}", "Let me tell you something. {S}",
    "Please remember: {S}", "{S} Remember that.", "This is what happened: {S}",
]  # fmt: skip
GO_ON = ["{S}"] * 6 + ["Now listen: {S}", "And this: {S}", "Then this happened: {S}", "The story goes on. {S}", "{S} Got it?", "Next: {S}"]
HEARD_FIRST = "All right. What would you like to know?"
HEARD = "All right."

BEFORE_QUESTION = ["{Q}"] * 10 + ["Question: {Q}", "Please tell me: {Q}", "So: {Q}", "Now a question. {Q}", "I have a question. {Q}", "OK. {Q}"]
FOLLOW_UPS = ["And {O}?", "What about {O}?", "And what about {O}?", "and {O}?"]
CORRECTIONS = ["No, {S}.", "No, {S}.", "That is wrong, {S}.", "Wrong. {U}.", "No. {U}.", "Actually, {S}.", "That is not right. {U}.",
    "Not any more, {S} now.", "You are wrong, {S}.", "Sorry, I made a mistake: {S}."]  # fmt: skip

UNKNOWN_FACTS = {
    "colour": "{P}'s favourite colour",
    "food": "{P}'s favourite food",
    "home": "where {P} lives",
    "job": "what {P}'s job is",
    "dog": "what {P}'s dog is called",
    "music": "what {P} plays",
    "sport": "{P}'s favourite sport",
    "age": "how old {P} is",
}


def has_word(text: str, word: str) -> bool:
    """Whether one of the words of `word` is in the text, also as a part of another one ("book" in "notebook")."""
    return any(part.lower() in text.lower() for part in word.split())


class Conversation:
    """Grows turn by turn: `messages`, each an answer behind a question, and what kind of question each was."""

    def __init__(self, rng: random.Random, mode: str, size: int):
        self.rng, self.mode = rng, mode
        self.story = Story(rng, mode, size)
        self.system, self.name = None, None
        self.turns = []  # (what the user says, the answer, kind)
        self.text = ""  # all of the story so far
        self.told = False
        self.last = None  # (kind, thing) of the question before, for corrections and follow-ups
        draw = rng.random()
        if draw < 0.15:
            self.system = rng.choice(SYSTEMS)
        elif draw < 0.25:
            self.name = upper("".join(rng.choice(words.SYLLABLES) for _ in range(2)))
            if rng.random() < 0.5:
                self.name = rng.choice(words.WOMEN + words.MEN)
            self.system = rng.choice(NAMED_SYSTEMS).format(N=self.name)
        elif draw < 0.4:
            self.system = rng.choice(STORY_SYSTEMS).format(S=self._sentences(rng.randint(1, max(2, size // 25))))

    def size(self) -> int:
        """About how many tokens."""
        return sum(estimate(user) + estimate(answer) + 9 for user, answer, _ in self.turns) + estimate(self.system or "")

    def _sentences(self, count) -> str:
        line = "\n" if self.rng.random() < 0.1 else " "
        if self.rng.random() < 0.5:
            self.story.last = None  # no pronoun for what an earlier message says
        text = line.join(self.story.sentence() for _ in range(count))
        self.text += text + "\n"
        return text

    # -- turns: (user, answer, kind), or None --------------------------------------------------------------------------

    def _tell(self, room):
        count = self.rng.randint(1, max(1, min(12, room // 24)))
        answer, templates = (HEARD, GO_ON) if self.told else (HEARD_FIRST, TELL)
        self.told = True
        return self.rng.choice(templates).format(S=self._sentences(count)), answer, "told"

    def _question(self):
        found = self.story.question() if self.story.where else None
        if not found:
            return None
        kind, question, answer = found
        thing = self.story.subject if kind in ("where", "moved") and self.story.subject in self.story.where else None
        self.last = (kind, thing, self.story.subject)
        return self.rng.choice(BEFORE_QUESTION).format(Q=question), answer, kind

    def _tell_and_ask(self, room):
        count = self.rng.randint(1, max(1, min(12, room // 30)))
        text = self._sentences(count)
        found = self._question()
        if not found:
            return None
        self.told = True
        between = self.rng.choice((" ", " ", " ", "\n", "\n\n"))
        return text + between + found[0], found[1], found[2]

    def _state_of(self, thing) -> str:
        state = self.story.where[thing]
        if state[0] == "held":
            return f"{state[1].name} has {thing.the}."
        return upper(f"{thing.the} {thing.be} {state[1].at}.")

    def _follow_up(self):
        """"And the lamp?" after a question for another thing's whereabouts."""
        if not self.last or not self.last[1]:
            return None
        others = [t for t in self.story.where if t is not self.last[1]]
        if not others:
            return None
        thing = self.rng.choice(others)
        self.last = ("where", thing, thing)
        return self.rng.choice(FOLLOW_UPS).format(O=thing.the), self._state_of(thing), "follow-up"

    def _correction(self):
        """The answer before is contradicted; from then on what the user says holds."""
        rng, story = self.rng, self.story
        if not self.last:
            return None
        kind, thing, subject = self.last
        self.last = None
        if thing:
            person = rng.choice(story.people)
            held = story.where[thing]
            if rng.random() < 0.3:
                if held[0] == "held" and held[1] is person or not story._allowed(person.name, thing.noun, "has"):
                    return None
                state, text = ("held", person), f"{person.name} has {thing.the}"
            else:
                place = story._pick_place(None, thing, rng.random() < 0.5)
                if place is None:
                    return None
                state, text = ("at", place, None, False), f"{thing.the} {thing.be} {place.at}"
                for noun in place.at.split("the ")[1:]:
                    noun = noun.split(" in ")[0].split(" at ")[0].split(" on ")[0].strip()
                    story.visitors.setdefault(noun, set()).add(thing)
            story._leave(thing)
            story.where[thing] = state
            # Who put it where was contradicted too.
            story.placed_by = {key: people for key, people in story.placed_by.items() if key[0] is not thing}
        elif kind == "fact":
            name = next((what for what in words.FACTS if (subject, what) in story.facts and rng.random() < 0.5), None)
            if name is None:
                return None
            value = rng.choice(words.FACTS[name][0])
            if story.facts[(subject, name)] == value or not story._allowed(subject.name, name, value):
                return None
            story.facts[(subject, name)] = value
            text = words.FACTS[name][4].format(P=subject.name, V=value).removesuffix(".")
        else:
            return None
        self.text += text + "\n"
        story.last = None
        template = rng.choice(CORRECTIONS)
        return template.format(S=text, U=upper(text)), f"All right, {text}.", "correction"

    def _unknown(self):
        """A question for what the story does not say."""
        rng, story = self.rng, self.story
        said = self.text + (self.system or "")
        draw = rng.random()
        if draw < 0.55:
            plural = rng.random() < 0.12
            noun = rng.choice(words.PLURALS if plural else words.THINGS)
            if not plural and story._wide(0.35):
                noun = rng.choice(words.MORE_THINGS)
            if has_word(said, noun) or not story._allowed("unknown", noun):
                return None
            phrase = noun
            if rng.random() < 0.4:
                phrase = rng.choice(words.ADJECTIVES) + " " + noun
            be, the = "are" if plural else "is", "the " + phrase
            if self.last and self.last[1] and rng.random() < 0.3:
                return rng.choice(FOLLOW_UPS).format(O=the), f"You have not told me where {the} {be}.", "unknown"
            if rng.random() < 0.3:
                question = story._wording("ASK_WHO_HAS").format(O=the, be=be)
                return question, f"You have not told me who has {the}.", "unknown"
            question = story._wording("ASK_WHERE").format(O=the, be=be)
            return rng.choice(BEFORE_QUESTION).format(Q=question), f"You have not told me where {the} {be}.", "unknown"
        name = rng.choice(words.WOMEN + words.MEN)
        if draw < 0.75:
            if has_word(said, name) or not story._allowed("unknown", name):
                return None
            return story._wording("ASK_PERSON").format(P=name), f"You have not told me where {name} is.", "unknown"
        person = rng.choice(story.people).name if rng.random() < 0.6 else name
        kind = rng.choice(list(UNKNOWN_FACTS))
        told = any(p.name == person and what == kind for p, what in story.facts)
        if told or person is name and has_word(said, name) or not story._allowed("unknown", person, kind):
            return None
        question = rng.choice(words.FACTS[kind][3]).format(P=person)
        return question, f"You have not told me {UNKNOWN_FACTS[kind].format(P=person)}.", "unknown"

    def _world(self):
        rng = self.rng
        draw = rng.random()
        if draw < 0.3:
            subject, templates = rng.choice(COUNTRIES), ABOUT_COUNTRIES
        elif draw < 0.5:
            subject, templates = rng.choice(FAMOUS), ABOUT_FAMOUS
        elif draw < 0.75:
            subject, templates = rng.choice(SUBJECTS), ABOUT_SUBJECTS
        else:
            subject, templates = "", REQUESTS
        question = rng.choice(templates).format(C=subject)
        if held_out("world", question) != (self.mode == TEST):
            return None
        return question, DOES_NOT_KNOW, "world"

    def _small_talk(self):
        rng = self.rng
        if rng.random() < 0.15:
            answer = f"My name is {self.name}." if self.name else "I have no name."
            return rng.choice(ASK_NAME), answer, "name"
        kind = rng.choice(list(SMALL_TALK))
        if kind == "praise" and not self.turns:
            return None
        said, answer = SMALL_TALK[kind]
        return rng.choice(said), answer, kind

    @staticmethod
    def _first_of(make):
        """What is drawn may be another mode's."""
        return next((found for found in (make() for _ in range(12)) if found), None)

    def turn(self, room: int, told=True):
        """One more question and its answer; with told=False nothing new is told."""
        rng = self.rng
        for _ in range(50):
            draw = rng.random()
            if not self.turns and draw < 0.25 and told:
                found = self._small_talk() if draw < 0.12 else self._world() if draw < 0.17 else self._tell(room)
            elif draw < 0.18 and told:
                found = self._tell(room)
            elif draw < 0.4 and told:
                found = self._tell_and_ask(room)
            elif draw < 0.6:
                found = self._question()
            elif draw < 0.67:
                found = self._follow_up()
            elif draw < 0.77:
                found = self._correction()
            elif draw < 0.88:
                found = self._first_of(self._unknown)
            elif draw < 0.92:
                question, answer = arithmetic(rng, self.mode)
                found = question, answer, "sum"
            elif draw < 0.96:
                found = self._first_of(self._world)
            else:
                found = self._small_talk()
            if found:
                if found[2] not in ("where", "moved", "follow-up", "fact"):
                    self.last = None
                self.turns.append(found)
                return
        question, answer = arithmetic(rng, self.mode)
        self.turns.append((question, answer, "sum"))


def training_conversation(rng: random.Random, size: int):
    """(system text or None, [(user, answer)]) of about `size` tokens."""
    conversation = Conversation(rng, TRAIN, size)
    while not conversation.turns or conversation.size() < size - 60:
        conversation.turn(size - conversation.size())
    return conversation.system, [(user, answer) for user, answer, _ in conversation.turns]


def chat_parts(system, turns):
    """[(text, is_answer)]: the conversation as the chat template sets it, cut where answers begin and end."""
    parts, before = [], f"<|im_start|>system\n{system}<|im_end|>\n" if system is not None else ""
    for user, answer in turns:
        parts.append((f"{before}<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n", False))
        parts.append((f"{answer}<|im_end|>", True))
        before = "\n"
    return parts


def test_conversation(rng: random.Random, size: int, turns: int):
    """A conversation of so many turns, whose last answer is asked for: a row of an evaluation set."""
    conversation = Conversation(rng, TEST, size)
    while len(conversation.turns) < turns:
        conversation.turn(max(30, size // turns), told=len(conversation.turns) + 1 < turns)
    messages = [{"role": "system", "content": conversation.system}] if conversation.system else []
    for user, answer, _ in conversation.turns:
        messages += [{"role": "user", "content": user}, {"role": "assistant", "content": answer}]
    answer = messages.pop()["content"]
    return {"messages": messages, "answer": answer, "tokens": conversation.size(), "kind": conversation.turns[-1][2]}


def test_set(seed: int, count: int):
    for index in range(count):
        rng = random.Random(f"conversation {seed} {index}")
        turns = 2 + index % 7
        yield test_conversation(rng, rng.randint(30, 110) * turns, turns)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--sample", type=int, default=0, help="print this many training conversations")
    parser.add_argument("--size", type=int, default=250, help="tokens of a sample")
    parser.add_argument("--test", type=int, default=0, help="conversations of an evaluation set")
    parser.add_argument("--out", default="conversations.jsonl", help="file of the evaluation set")
    options = parser.parse_args()
    for index in range(options.sample):
        system, turns = training_conversation(random.Random(f"train {options.seed} {index}"), options.size)
        for text, answer in chat_parts(system, turns):
            print(f"[{text}]" if answer else text, end="")
        print("\n-----")
    if options.test:
        with open(options.out, "w", encoding="utf-8") as file:
            for row in test_set(options.seed, options.test):
                file.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
