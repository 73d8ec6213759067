"""Words and sentence templates of tools/stories.py."""

import re

WOMEN = """Anna Maria Emma Olivia Sophia Mia Ella Lily Grace Chloe Emily Sarah Laura Julia Alice Eva Clara Nora Ruth
Hannah Lucy Kate Jane Mary Linda Susan Karen Nancy Betty Helen Sandra Donna Carol Sharon Michelle Amanda Melissa Rebecca
Stephanie Nicole Rachel Heather Diane Virginia Janet Catherine Victoria Martha Gloria Teresa Rose Amy Ashley Jessica
Jennifer Patricia Elizabeth Barbara Margaret Dorothy Lisa Kim Debbie Cynthia Angela Brenda Pamela Christine Samantha
Cheryl Joyce Joan Judith Evelyn Megan Andrea Frances Jean Theresa Marie Diana Natalie Brittany Abigail Isabella Kayla
Alexis Danielle Marilyn Beverly Vera Irene Tina Wendy Zoe Maya Leah Fiona Nina Olga Ingrid Greta Heidi Elena Sofia Lucia
Carmen Rosa Ana Ines Pilar Paula Bianca Chiara Giulia Yuki Aiko Sakura Hana Mei Ling Priya Anita Leila Fatima Amina Zara
Layla Aisha Noor Yasmin Esther Miriam Naomi Judy Daisy Ivy Violet Hazel Ruby Pearl Jade Amber Holly Iris Flora Stella
Luna Bella Penny Molly Sally Polly Dora Cora Lola Tara Mona Rita Gina Edith Agnes Mabel Elsie Freya Astrid Sigrid Maja
Petra Tanya Katya Natasha Irina Svetlana Ludmila Hilda Ursula Brigitte Monique Claire Camille Juliette Elise Sandy Beth
Meg Jo Peggy Sue Eve Tess Nell Joy Hope Faith Gwen Nadia Zainab Eleanor Charlotte Amelia Harper Sienna Matilda""".split()

MEN = """Tom John Peter Paul Mark Luke James David Daniel Michael Robert William Richard Joseph Thomas Charles Christopher
Matthew Anthony Donald Steven Andrew Kenneth Joshua Kevin Brian George Edward Ronald Timothy Jason Jeffrey Ryan Jacob Gary
Nicholas Eric Jonathan Stephen Larry Justin Scott Brandon Benjamin Samuel Gregory Frank Alexander Raymond Patrick Jack
Dennis Jerry Tyler Aaron Jose Adam Henry Nathan Douglas Zachary Kyle Walter Ethan Jeremy Harold Keith Christian Roger Noah
Gerald Carl Terry Sean Austin Arthur Lawrence Jesse Dylan Bryan Joe Jordan Billy Bruce Albert Willie Gabriel Logan Alan
Juan Wayne Roy Ralph Randy Eugene Vincent Russell Louis Bobby Philip Johnny Ben Bob Bill Fred Sam Max Leo Oscar Felix Otto
Hugo Ivan Igor Boris Oleg Dmitri Sergei Anton Viktor Pavel Milan Marek Lars Sven Erik Olaf Nils Jens Hans Karl Kurt Fritz
Emil Jan Pedro Pablo Diego Carlos Luis Miguel Antonio Marco Luca Matteo Giovanni Mario Kenji Hiro Akira Takeshi Wei Chen
Raj Arjun Ravi Amit Omar Ali Hassan Ahmed Yusuf Ibrahim Karim Tariq Abdul Isaac Elijah Caleb Simon Martin Oliver Harry
Charlie Alfie Archie Toby Jake Liam Finn Owen Rory Colin Ian Neil Graham Stuart Derek Nigel Clive Trevor Gavin Craig Doug
Greg Jeff Jim Tim Ted Ned Ed Al Dan Don Ron Rob Nick Rick Mick Dave Steve Mike Pete Will Theo Jasper Silas Ezra Milo Axel
Rex Ray Jay Kai Amos Cyrus Hector Victor Julian Adrian Sebastian Dominic Lewis Mason Aiden Lucas""".split()

SYLLABLES = """ba bel bor bri cal cor da del dor fa fen fi gal gor gri ha hel jo ka kel kor la lin lo lu ma mel mi mor na
nel no nu pa pel pi qua ra rel ri ro sa sel si so ta tel ti tor tu va vel vi vo wa wen xa ya yo za zel zor""".split()

COLOURS = """red blue green yellow black white brown grey pink purple orange golden silver""".split()
SIZES = """big small little large tiny huge""".split()
ADJECTIVES = (
    COLOURS
    + COLOURS
    + SIZES
    + """old new wooden metal glass plastic paper leather heavy light round square broken shiny dusty clean dirty soft
striped long short thick thin beautiful strange cheap expensive wet dry empty full warm cold favourite""".split()
)

THINGS = """ball lamp book key cup plate bowl spoon fork knife bottle box bag basket hat coat scarf shirt jacket sweater
dress umbrella watch ring necklace phone laptop tablet camera radio clock mirror picture painting photo letter card map
notebook pen pencil ruler eraser brush hammer screwdriver saw ladder rope bucket broom shovel rake hose torch candle
lantern match pillow blanket towel sheet carpet cushion chair stool suitcase backpack wallet purse ticket passport coin
note newspaper magazine dictionary diary guitar violin piano drum flute trumpet doll teddy puzzle kite bicycle scooter
skateboard football basketball racket bat helmet glove apple pear banana lemon peach plum melon cherry tomato potato
carrot onion cabbage pumpkin cake pie cookie sandwich pizza bread cheese sausage egg milk juice tea coffee honey jam
butter sugar salt pepper soup teapot kettle pot pan jar glass mug tray vase flower plant rose seed stone shell feather
leaf stick branch toy robot puppet marble balloon statue trophy medal flag drawing poster parcel package envelope stamp
remote charger cable battery keyboard mouse printer telescope compass whistle bell crown sword shield wand drill spanner
needle button ribbon soap sponge comb toothbrush bandage pill thermometer microscope magnet calculator globe""".split()

PLURALS = """keys glasses scissors shoes boots gloves socks books papers letters tickets flowers apples oranges cookies
pencils coins cards stamps photos candles tools toys plates cups batteries headphones trousers grapes eggs nuts
sunglasses slippers documents maps""".split()

ROOMS = [
    ("in", noun)
    for noun in """kitchen bathroom bedroom garage attic cellar basement hall hallway garden office study library pantry
nursery classroom laboratory workshop studio gym shed barn stable greenhouse laundry lobby corridor cafeteria canteen
dining|room living|room waiting|room playroom storeroom cloakroom courtyard yard park forest tower castle church museum
theatre cinema restaurant bakery shop supermarket hotel hospital bank school car van truck tent cabin cottage hut cave
closet house room flat guest|room tea|room changing|room meeting|room village town vault chapel conservatory den ballroom mill""".split()
] + [
    ("at", noun)
    for noun in """station airport harbour beach market post|office bus|stop police|station university zoo stadium
swimming|pool farm factory reception gate bridge lighthouse campsite playground river lake town|hall pharmacy
pier fountain square embassy""".split()
] + [("on", noun) for noun in "balcony terrace roof porch veranda deck landing boat train bus platform hill island".split()]
ROOMS = [(at, noun.replace("|", " ")) for at, noun in ROOMS]

SPOTS = [
    ("on|under|on|beside|near", "table"), ("on|under|next to", "chair"), ("on|under|behind|next to", "sofa"),
    ("on|under|beside", "bed"), ("in|on|under|behind|next to", "desk"), ("on", "shelf"), ("in|on|behind", "cupboard"),
    ("in", "drawer"), ("in|behind|on top of", "wardrobe"), ("in|on|next to|behind", "fridge"), ("in|on", "oven"),
    ("in|near", "sink"), ("in", "box"), ("in|under|behind", "basket"), ("in", "bag"), ("in", "backpack"),
    ("in|under", "suitcase"), ("on|near", "windowsill"), ("behind|near|next to", "door"), ("under|behind", "curtain"),
    ("on|under", "carpet"), ("on|under", "rug"), ("in|behind", "chest"), ("on|behind|next to", "piano"),
    ("on|next to", "radiator"), ("in|next to", "fireplace"), ("under|behind|near", "tree"), ("on|under", "bench"),
    ("behind|under", "bush"), ("near|behind", "fence"), ("on|under", "stairs"), ("in", "bathtub"), ("on|behind", "counter"),
    ("in|on", "safe"), ("under|on", "pillow"), ("under", "blanket"), ("on|behind", "bookcase"), ("in", "trunk"),
    ("in", "bucket"), ("in", "freezer"), ("in|next to", "washing machine"), ("on", "mat"), ("behind", "mirror"),
    ("in", "locker"), ("in|under", "vase"), ("on", "tray"), ("in", "pocket"), ("near", "window"), ("behind", "wall"),
    ("in", "mailbox"), ("on", "dresser"), ("in", "toy box"), ("behind|on", "television"), ("next to|on", "computer"),
    ("in|near", "bin"), ("in", "jar"), ("on|near", "armchair"), ("on", "nightstand"), ("in", "cabinet"), ("on", "floor"),
]  # fmt: skip

PLACE_ADJECTIVES = "old new big small upstairs downstairs red blue green white dark quiet little first second".split()

FOODS = """soup pizza pasta rice salad bread cheese fish chicken cake chocolate honey apples bananas grapes pancakes
noodles curry sushi stew porridge yoghurt strawberries cookies popcorn""".split()
JOBS = """baker teacher doctor nurse pilot farmer painter writer singer dancer driver cook waiter lawyer judge plumber
carpenter gardener librarian scientist dentist sailor fisherman tailor journalist butcher mechanic musician
photographer postman""".split()
CITIES = """London Paris Berlin Rome Madrid Vienna Prague Warsaw Lisbon Dublin Oslo Stockholm Helsinki Copenhagen Athens
Budapest Moscow Istanbul Cairo Nairobi Lagos Delhi Mumbai Tokyo Kyoto Beijing Shanghai Seoul Bangkok Sydney Melbourne
Toronto Montreal Chicago Boston Seattle Denver Dallas Miami Lima Havana Zurich Geneva Milan Naples Munich Hamburg
Amsterdam Brussels Edinburgh""".split()
PETS = """Rex Bello Fluffy Spot Rusty Shadow Ginger Snowy Buddy Coco Lucky Misty Patch Tiger Smokey Biscuit Pepper Whiskers
Bruno Rocky Daisy Luna Oreo Muffin Pickles""".split()
INSTRUMENTS = "guitar piano violin flute drums trumpet cello harp organ saxophone clarinet banjo".split()
SPORTS = "football tennis basketball hockey golf chess volleyball cricket rugby badminton".split()

# kind: values, first statement, statement of a change, questions, answer.
FACTS = {
    "colour": (
        COLOURS,
        ["{P}'s favourite colour is {V}.", "The favourite colour of {P} is {V}."],
        ["{P}'s favourite colour is now {V}.", "Now {P}'s favourite colour is {V}."],
        ["What is {P}'s favourite colour?", "What is the favourite colour of {P}?"],
        "{P}'s favourite colour is {V}.",
    ),
    "food": (
        FOODS,
        ["{P}'s favourite food is {V}.", "{P}'s favourite food has always been {V}."],
        ["{P}'s favourite food is now {V}.", "By now {P}'s favourite food is {V}."],
        ["What is {P}'s favourite food?", "Which food is {P}'s favourite?"],
        "{P}'s favourite food is {V}.",
    ),
    "home": (
        CITIES,
        ["{P} lives in {V}.", "{P} has a small flat in {V}.", "{P}'s home is in {V}."],
        ["{P} moved to {V}.", "{P} lives in {V} now.", "{P} has just moved to {V}."],
        ["Where does {P} live?", "In which city does {P} live?", "Where does {P} live now?"],
        "{P} lives in {V}.",
    ),
    "job": (
        JOBS,
        ["{P} is a {V}.", "{P} works as a {V}."],
        ["{P} is now a {V}.", "{P} changed jobs and became a {V}."],
        ["What is {P}'s job?", "What does {P} do for a living?", "What does {P} work as?"],
        "{P} is a {V}.",
    ),
    "dog": (
        PETS,
        ["{P} has a dog called {V}.", "{P}'s dog is called {V}.", "{P} has a dog. Its name is {V}."],
        ["{P} has a new dog called {V}."],
        ["What is {P}'s dog called?", "What is the name of {P}'s dog?"],
        "{P}'s dog is called {V}.",
    ),
    "music": (
        INSTRUMENTS,
        ["{P} plays the {V}.", "{P} is learning to play the {V}."],
        ["Now {P} plays the {V}.", "{P} plays the {V} now."],
        ["What does {P} play?", "Which instrument does {P} play?"],
        "{P} plays the {V}.",
    ),
    "sport": (
        SPORTS,
        ["{P}'s favourite sport is {V}.", "{P} likes {V} more than any other sport."],
        ["{P}'s favourite sport is now {V}."],
        ["What is {P}'s favourite sport?", "Which sport does {P} like most?"],
        "{P}'s favourite sport is {V}.",
    ),
    "age": (
        [str(n) for n in range(4, 90)],
        ["{P} is {V} years old.", "{P} is {V}."],
        ["{P} is now {V} years old.", "{P} turned {V}."],
        ["How old is {P}?", "How old is {P} now?"],
        "{P} is {V} years old.",
    ),
}

OPENINGS = """Then|After that,|Later,|A little later,|Soon after,|In the morning,|In the evening,|In the afternoon,|At noon,|
Before lunch,|After dinner,|On Monday,|On Tuesday,|On Wednesday,|On Thursday,|On Friday,|On Saturday,|On Sunday,|Suddenly,|
Meanwhile,|The next day,|An hour later,|Finally,|This morning,|Yesterday,|Today,|After breakfast,|Around ten o'clock,|
That night,|Next,|Afterwards,|At last,|Without a word,|As usual,|Once again,|A few minutes later,|And then|So|
First,|Now""".replace("\n", "").split("|")
OPENINGS = [text + " " for text in OPENINGS]

ENDINGS = """quietly|with a smile|before lunch|after breakfast|in a hurry|without a word|very carefully|again|this morning|
as always|right away|at noon|before it got dark|because it was late|because nobody needed it|while the others were talking|
as quickly as possible|once more|just in case|for a while|before going out|after work""".replace("\n", "").split("|")

PUT = """{P} put {O} {L}|{P} put {O} {L}|{P} put {O} {L}|{P} placed {O} {L}|{P} left {O} {L}|{P} dropped {O} {L}|
{P} set {O} down {L}|{P} hid {O} {L}|{P} stored {O} {L}|{P} forgot {O} {L}|
{P} has put {O} {L}|{P} threw {O} down {L}|{P} decided to put {O} {L}|
{O} {was} put {L} by {P}|{O} {was} left {L} by {P}|{P} found {O} and put {it} {L}|{P} cleaned {O} and left {it} {L}|
{P} looked at {O} for a moment and put {it} {L}|{P} discarded {O} {L}|{P} kept {O} {L}|{P} laid {O} {L}|
{P} took {O} and put {it} {L}|{P} grabbed {O}. {He} put {it} {L}|{P} picked up {O}. Then {he} put {it} {L}|
{P} put {O} back {L}|{P} locked {O} away {L}|{P} returned {O}. {He} put {it} {L}""".replace("\n", "").split("|")

CARRY = """{P} took {O} {T}|{P} took {O} {T}|{P} took {O} {T}|{P} carried {O} {T}|{P} brought {O} {T}|{P} moved {O} {T}|
{P} returned {O} {T}|{P} walked {T} and put {O} there|{P} went {T} and left {O} there|{P} picked up {O} and took {it} {T}|
{P} put {O} {L}|{P} left {O} {L}|{P} dropped {O} {L}|{P} placed {O} {L}|{P} hid {O} {L}|{O} {was} taken {T} by {P}|
{P} picked up {O}. {He} took {it} {T}|{P} carried {O} all the way {T}|{P} went {T} with {O} and left {it} there|
{P} delivered {O} {T}|{P} took {O} back {T}|{P} ran {T} and dropped {O} there|{P} got {O} and carried {it} {T}|
{P} pushed {O} {T}|{P} sent {O} {T}|{P} transferred {O} {T}|{P} needed {O} elsewhere and took {it} {T}|
{P} grabbed {O} and brought {it} {T}""".replace("\n", "").split("|")

PUT_AGAIN = """{P} put {it} {L}|then {P} put {it} {L}|later {P} put {it} {L}|after a while {P} put {it} {L}|
then {P} moved {it} and put {it} {L}|but then {P} put {it} {L}|soon {P} hid {it} {L}""".replace("\n", "").split("|")
CARRY_AGAIN = """{P} took {it} {T}|then {P} took {it} {T}|later {P} moved {it} {T}|after a while {P} carried {it} {T}|
but then {P} brought {it} {T}|an hour later {P} took {it} {T}""".replace("\n", "").split("|")

STATED_FIRST = """{O} {be} {L}.|{O} {was} {L}.|there {be} {A} {L}.|you can find {O} {L}.|{O} {was} lying {L}.|
{O} can be found {L}.|in the beginning, {O} {was} {L}.|at first, {O} {was} {L}.""".replace("\n", "").split("|")
STATED_AGAIN = """{O} {be} now {L}.|now {O} {be} {L}.|somebody moved {O}. Now {O} {be} {L}.|in the end {O} {was} {L}.|
{O} {was} found {L}.|by evening {O} {was} {L}.""".replace("\n", "").split("|")

HOLD_FIRST = """{P} picked up {O}|{P} took {O}|{P} has {A}|{P} has {O}|{P} is holding {O}|{P} found {O}|{P} bought {A}|
{P} grabbed {O}|{P} got {O}|{P} had {O}|{P} kept {O}|{P} was carrying {O}|{P} borrowed {O}""".replace("\n", "").split("|")
HOLD = """{P} picked up {O}|{P} took {O}|{P} grabbed {O}|{P} got {O}|{P} has {O} now|{P} now has {O}|{P} is holding {O}|
{P} borrowed {O}|{P} went to fetch {O}""".replace("\n", "").split("|")
HOLD_FROM = ["{P} took {O} from {B}", "{P} got {O} from {B}", "{P} fetched {O} from {B}"]

GIVE = """{P} gave {O} to {Q}|{P} gave {O} to {Q}|{P} gave {Q} {O}|{P} handed {O} to {Q}|{P} handed {Q} {O}|
{P} passed {O} to {Q}|{P} lent {O} to {Q}|{P} sold {O} to {Q}|{Q} got {O} from {P}|{Q} received {O} from {P}|
{P} met {Q} and gave {Q} {O}|{P} decided to give {O} to {Q}|{P} returned {O} to {Q}|{P} sent {O} to {Q}""".replace("\n", "").split("|")

GIVE_AGAIN = """{P} gave {it} to {Q}|then {P} gave {it} to {Q}|{P} handed {it} to {Q}|later {P} gave {it} to {Q}|
but then {P} gave {it} to {Q}|{P} passed {it} to {Q}""".replace("\n", "").split("|")

GO_TOGETHER = ["{P} and {Q} went {T}", "{P} and {Q} walked {T}", "{P} went {T} with {Q}", "{P} and {Q} ran {T}"]

GO = """{P} went {T}|{P} went {T}|{P} went {T}|{P} walked {T}|{P} ran {T}|{P} travelled {T}|{P} hurried {T}|
{P} came {T}|{P} moved {T}|{P} drove {T}|{P} journeyed {T}|{P} went back {T}|{P} returned {T}|{P} headed {T}|
{P} decided to go {T}|{P} got bored and went {T}""".replace("\n", "").split("|")
STAY = ["{P} is {L}", "{P} is {L} now", "{P} was {L}", "{P} is waiting {L}", "{P} is sitting {L}", "{P} stayed {L}"]

SMALL_TALK = """The sun was shining.|It was raining outside.|The sky was grey.|It was a cold morning.|The wind was strong.|
Nobody said a word.|Everyone was tired.|It was very quiet in the house.|The birds were singing.|A dog barked outside.|
The clock struck nine.|It was getting late.|The weather was lovely.|Snow was falling.|The street was empty.|
There was a smell of fresh bread.|The radio played an old song.|Everyone laughed.|The day was long.|It was a busy day.|
The neighbours were making noise again.|Somebody knocked, but it was nothing important.|The phone rang twice.|
The children were playing.|It had been a good week.|The lights went out for a minute.|A train passed in the distance.|
The leaves were turning yellow.|It was almost time for dinner.|Lunch was ready.|The moon was bright.|Time went by.|
A cat was sleeping in the sun.|There was not much to do.|The rain stopped at last.|It was warm and sunny.|
Everybody was in a good mood.|The news was not very interesting.|The air was fresh.|A car stopped in front of the house.|
Nothing special happened for a while.|It was an ordinary day.|The water was cold.|Spring was coming.|The tea was hot.|
The music was too loud.|Two men were talking about football.|The stars came out.|Fog covered the fields.|
The windows were open.|That was all for now.|An old man walked by.|The bells were ringing.""".replace("\n", "").split("|")

DISTRACTORS = """{P} was happy that day.|{P} was tired.|{P} felt hungry.|{P} and {Q} talked about the weather.|
{P} likes to sing.|{P} smiled at {Q}.|{P} asked {Q} about the holidays.|{P} told {Q} a funny story.|{P} waved to {Q}.|
{P} looked at {O} and smiled.|{P} thought about {O}.|{P} asked {Q} about {O}.|{P} wanted to buy another {N}.|
{P} wanted to go to the {R}, but it was raining.|{P} did not want to go to the {R}.|{P} dreamed of a {N}.|
{P} had never seen such a {N} before.|{P} said hello to {Q}.|{P} was in a good mood.|{P} felt a little cold.|
{P} had {F} for lunch.|{P} does not like {F}.|{P} and {Q} had {F} for dinner.|{P} laughed about {his} own joke.|
{P} was looking for a {N}.|{P} did not know where to go.|{P} thanked {Q}.|{P} is a friend of {Q}.|{Q} is older than {P}.|
{P} heard a noise in the {R}.|{P} could not sleep.|{P} was reading.|{P} wrote a long letter.|{P} said that {O} {be} nice.|
{P} and {Q} played cards.|{P} asked, "How are you?"|"I like it here," said {P}.|"What a day!" said {P}.|
"Where is my {N}?" asked {P}, but nobody knew.|"Let us go home," {P} said to {Q}.|{P} washed {his} hands.|
{P} listened to the radio.|{P} was late again.|{Q} was waiting for {P}.|{P} thinks that the {R} is too small.|
{P} was cleaning the {R}.|{P} painted a picture of a {N}.|{P} did not touch {O}.|{P} did not take {O}.|
{P} remembered the old {R}.|{P} is taller than {Q}.|{P} had a headache.|{P} yawned.|{P} sang a song for {Q}.|
{Q} told {P} to be careful with {O}.|{P} promised to help {Q}.|{P} talked on the phone for an hour.|{P} loves {F}.|
{P} was proud of {O}.|{P} cooked {F} for {Q}.|{P} lost a game against {Q}.|{P} said that {he} was fine.""".replace("\n", "").split("|")

ASK_WHERE = """Where {be} {O}?|Where {be} {O}?|Where {be} {O}?|Where {be} {O} now?|Where can I find {O}?|
Do you know where {O} {be}?|Tell me where {O} {be}.|Can you tell me where {O} {be}?|Where {be} {O} at the moment?|
And where {be} {O}?|So where {be} {O}?|In which place {be} {O}?""".replace("\n", "").split("|")
ASK_WHO_HAS = """Who has {O}?|Who has {O}?|Who has {O} now?|Who is holding {O}?|Who has got {O}?""".replace("\n", "")
ASK_WHO_HAS = ASK_WHO_HAS.split("|")
ASK_PERSON = ["Where is {P}?", "Where is {P}?", "Where is {P} now?", "Do you know where {P} is?", "Where can I find {P}?"]

COUNTED = "apples books coins cards pencils eggs stamps balls cookies flowers tickets sweets marbles bananas".split()
MORE = """{P} has {a} {n}. {Q} gives {P} {b} more.|{P} had {a} {n}. {P} bought {b} more {n}.|
{P} had {a} {n}. {Q} gave {P} {b} {n}.|{P} has {a} {n} and finds {b} more.""".replace("\n", "").split("|")
LESS = """{P} has {a} {n}. {P} gives {b} to {Q}.|{P} had {a} {n}. {P} lost {b} of them.|
{P} had {a} {n}. {P} sold {b} {n} to {Q}.|{P} has {a} {n} and gives {b} of them away.""".replace("\n", "").split("|")
ASK_SUM = """What is {a} {op} {b}?|What is {a} {op} {b}?|How much is {a} {op} {b}?|Tell me, what is {a} {op} {b}?|
What do you get for {a} {op} {b}?""".replace("\n", "").split("|")

# -- for training only -------------------------------------------------------------------------------------------------

MORE_THINGS = """cat dog kitten puppy rabbit hamster parrot goldfish turtle frog hen duck goat pony lamb hedgehog snail crab
beetle spider mouse bird ant car truck van tractor boat ship plane helicopter rocket train wagon sledge tent canoe paddle
surfboard ski skate parachute anchor compass microphone speaker television computer monitor printer scanner calendar
clipboard stapler folder binder marker crayon chalk paintbrush easel canvas palette scroll quill ink bookmark novel comic
recipe contract bill receipt cheque passbook badge mask costume cape gown robe pyjamas vest blouse skirt belt tie bow sock
slipper sandal boot shoe apron bib diaper pram cradle crib rattle pacifier bracelet earring brooch pearl diamond emerald
ruby jewel gem treasure coin nugget brick tile pipe wire nail screw bolt nut hinge lock padlock chain hook rod net bait
axe chisel pliers wrench tape glue string yarn thread wool fabric leather silk cotton cork lid straw napkin tablecloth
plug socket bulb switch fan heater iron vacuum mop duster sink kettle toaster blender mixer whisk grater ladle spatula
tongs skillet wok cauldron barrel crate carton sack pouch satchel briefcase trunk chest casket urn goblet chalice pitcher
flask thermos canteen lunchbox burger hotdog taco burrito pancake waffle muffin croissant bagel pretzel doughnut cupcake
brownie pudding yoghurt steak ham bacon turkey salmon lobster shrimp oyster carrot radish turnip beetroot leek garlic
ginger spinach lettuce broccoli cauliflower cucumber pea bean corn mushroom olive walnut almond peanut chestnut acorn
coconut pineapple mango papaya kiwi fig date raisin apricot grapefruit lime strawberry blueberry raspberry watermelon
trombone tuba accordion banjo ukulele tambourine xylophone triangle dice chessboard domino jigsaw yoyo frisbee racquet
puck dart bow arrow spear dagger pistol cannon armour crown throne sceptre orb potion spellbook broomstick fossil bone
skull tooth egg nest shell pebble rock crystal meteorite snowball icicle pinecone mushroom cactus fern ivy tulip daisy
sunflower daffodil orchid lily wreath bouquet firework lighter ashtray pipe cigar syringe stethoscope crutch wheelchair
plaster medicine vitamin ointment shampoo perfume lipstick razor tissue wig lens binoculars drone joystick console
cartridge cassette record tape disc chip battery engine wheel tyre pedal saddle bridle whip collar leash bowl cage
aquarium kennel hive feeder gift present prize secret message note sign banner sticker badge thing item object""".split()
MORE_ADJECTIVES = """turquoise crimson violet beige maroon navy scarlet ivory bronze copper checked spotted furry fluffy
woollen rubber velvet stone porcelain ceramic digital electric magic secret lost stolen forgotten hidden ancient modern
rusty cracked torn folded sharp blunt heavy tiny enormous gigantic narrow wide curved flat crooked sticky smooth rough
fresh stale frozen hot sweet sour ripe rotten tall fat thick pretty ugly lovely funny famous rare precious worthless
second-hand handmade Italian French Chinese Persian Swiss brand-new well-known dark bright pale colourful transparent""".split()
MORE_ROOMS = [
    (at, noun.replace("|", " "))
    for at, noun in [("in", noun) for noun in """living|room dining|room bedroom guest|room playroom sunroom conservatory closet
storeroom storage|room wine|cellar bunker dungeon tower castle palace temple cave forest wood meadow field desert valley
village city tent cabin cottage igloo cockpit engine|room control|room waiting|room meeting|room conference|room boardroom
changing|room courtroom prison cell vault warehouse hangar depot showroom salon gallery chapel cathedral monastery
backyard courtyard orchard vineyard pond pool spaceship submarine caravan taxi car elevator stairwell archive""".split()]
    + [("at", noun) for noun in """office school station shop market pub gym club hotel spa museum theatre harbour dock
border crossroads entrance exit front|desk checkout gate circus fair wedding party concert match dentist's baker's""".split()]
    + [("on", noun) for noun in "patio beach rooftop ship ferry plane tram pier stage field pitch court farm mountain moon".split()]
]  # fmt: skip
MORE_SPOTS = [
    ("on|under|near", "kitchen table"), ("on|under", "coffee table"), ("on|behind|under", "couch"), ("in|under", "cradle"),
    ("on|next to|under", "workbench"), ("in|on|behind", "dishwasher"), ("in|on", "microwave"), ("on|in", "stove"),
    ("in|behind", "closet"), ("in", "glove compartment"), ("in|behind|under", "car"), ("in|on", "boat"), ("in", "tent"),
    ("in", "top drawer"), ("on", "top shelf"), ("on", "bottom shelf"), ("in", "shopping bag"), ("in", "handbag"),
    ("in|on|under", "crate"), ("in|behind", "barrel"), ("in|under|on", "pot"), ("in|on|next to", "dustbin"), ("on", "roof"),
    ("on|under|behind", "rock"), ("in|under|behind", "hedge"), ("in|near", "pond"), ("under|near", "bridge"),
    ("on|behind", "stage"), ("on|behind|under", "blackboard"), ("on|in", "teacher's desk"), ("in|on|beside", "pram"),
    ("in", "jewellery box"), ("in", "tool box"), ("in", "lunchbox"), ("in", "shoe box"), ("in", "envelope"), ("in", "wallet"),
    ("in|behind|on", "chimney"), ("on|beside", "doormat"), ("on", "hook"), ("on", "plate"), ("in", "bowl"), ("in", "cup"),
    ("behind|next to", "lamp"), ("behind|on", "clock"), ("under|on", "hat"), ("in|under", "coat"), ("on", "wall"),
    ("in|under|on", "hammock"), ("under|in", "sofa bed"), ("on|under", "bunk bed"), ("next to|behind", "statue"),
]  # fmt: skip
FAMILY_NAMES = """Smith Jones Brown Taylor Wilson Miller Davis Clark Lee Walker Hall Young King Wright Hill Green Baker
Adams Nelson Carter Parker Evans Turner Collins Morris Cook Bell Murphy Cooper Reed Bailey Gray Watson Wood Price Ross
Schmidt Weber Garcia Rossi Novak Tanaka Kim Patel Khan Chen""".split()
WOMENS_ROLES = """Mum|Mother|Mom|Grandma|Granny|Mrs {V}|Miss {V}|Aunt Rose|Queen Mary|the teacher|the nurse|the queen|
the girl|my sister|my mother|her aunt|our neighbour|the old woman|the witch|the princess|the waitress|the doctor|the boss"""
MENS_ROLES = """Dad|Father|Daddy|Grandpa|Grandad|Mr {V}|Dr {V}|Uncle Bob|King Arthur|the teacher|the farmer|the king|the boy|
my brother|my father|his uncle|our neighbour|the old man|the wizard|the prince|the waiter|the baker|the policeman"""
ROLES = [("f", name) for name in WOMENS_ROLES.replace("\n", "").split("|")]
ROLES += [("m", name) for name in MENS_ROLES.replace("\n", "").split("|")]

JOINTS = (", and ", ", and ", " and ", ", while ", "; ", ", but ", ", then ")
ASK_WHAT = """What is {L}?|What is {L}?|What is {L}?|What is {L} now?|What is there {L}?|Which thing is {L}?""".split("|")
SENT = re.compile("sent|deliver|transfer|left|forgot|kept|stored|threw|push|discard|hid|lock|return")
MORE_WORDINGS = {
    "PUT": """{P} hung {O} {L}|{P} has left {O} {L}|{P} tossed {O} away, and now it lies {L}|{P} carefully put {O} {L}|
{P} stuffed {O} away {L}|{P} set {O} {L}|{P} rested {O} {L}|{P} stashed {O} {L}|{P} slid {O} away {L}|{P} puts {O} {L}|
{P} quickly hid {O} {L}|{P} wanted {O} to be safe and put {it} {L}|{P} had {O} in {his} hand and put {it} {L}|
{P} held {O} for a while and then left {it} {L}|{P} came in and put {O} {L}|{O} {was} hidden {L} by {P}|
{O} {was} placed {L} by {P}|{P} leaves {O} {L}|{P} is putting {O} {L}|{P} positioned {O} {L}|{P} just put {O} {L}""",
    "CARRY": """{P} dragged {O} {T}|{P} takes {O} {T}|{P} brings {O} {T}|{P} rushed {O} {T}|{P} rolled {O} {T}|
{P} fetched {O} and brought {it} {T}|{P} has taken {O} {T}|{P} has moved {O} {T}|{P} walked {T} with {O} and put {it} down|
{P} put {O} in a bag and carried {it} {T}|{O} {was} brought {T} by {P}|{O} {was} moved {T} by {P}|{P} hauled {O} {T}|{P} shifted {O} {T}|{P} gently carried {O} {T}|{P} moves {O} {T}""",
    "STATED_FIRST": """{O} {be} still {L}.|{O} {be} usually {L}.|{O} {was} left {L}.|there {was} {A} {L}.|
someone put {O} {L}.|{O} {be} right {L}.|everybody knows that {O} {be} {L}.|{O} {be} sitting {L}.|{O} stood {L}.""",
    "STATED_AGAIN": """someone put {O} {L}.|someone moved {O}, and now {O} {be} {L}.|{O} {be} no longer there. Now {O} {be} {L}.|
{O} had to be put {L}.|after that, {O} {was} {L}.|{O} turned up {L}.""",
    "HOLD_FIRST": """{P} is carrying {A}|{P} owns {A}|{P} holds {O}|{P} got {A} as a present|{P} carries {O}|{P} won {A}""",
    "HOLD": """{P} took {O} away|{P} picked {O} up|{P} holds {O} now|{P} is carrying {O} now|{P} grabbed {O} and kept {it}|
{P} came for {O} and took {it}|{P} put {O} in {his} pocket""",
    "GIVE": """{P} offered {O} to {Q}, and {Q} took {it}|{P} threw {O} to {Q}|{P} gives {O} to {Q}|{P} gives {Q} {O}|
{P} lent {Q} {O}|{P} sold {Q} {O}|{P} brought {Q} {O}|{Q} was given {O} by {P}|{Q} took {O} from {P}|
{P} gave {O} back to {Q}|{P} made {Q} a present of {O}|{Q} bought {O} from {P}""",
    "GO": """{P} goes {T}|{P} wandered {T}|{P} rushed {T}|{P} has gone {T}|{P} strolled {T}|{P} drove back {T}|{P} flew {T}|{P} walks {T}|{P} has just come {T}""",
    "STAY": """{P} is still {L}|{P} is standing {L}|{P} is working {L}|{P} sat down {L}|{P} is hiding {L}|{P} waits {L}""",
    "ASK_WHERE": """Where {be} {O} right now?|Where did {O} end up?|What is the location of {O}?|Any idea where {O} {be}?|
Where {be} {O} kept?|Where should I look for {O}?|Please tell me where {O} {be}.|where {be} {O}|Where can {O} be found?|
Where {be} {O} located?|where {be} {O}?|Could you tell me where {O} {be}?|In what place {be} {O}?|Where was {O} put last?""",
    "ASK_WHO_HAS": """Who has {O} at the moment?|Who holds {O}?|Who {be} {O} with?|who has {O}?|Who has {O} in the end?|
Do you know who has {O}?|Tell me who has {O}.|Who carries {O}?""",
    "ASK_PERSON": """Where is {P} right now?|Tell me where {P} is.|Where can {P} be found?|where is {P}?|So where is {P}?|
Can you tell me where {P} is?|Where is {P} at the moment?|Where has {P} gone?|What is {P}'s location?""",
    "ASK_WHAT": """What can I find {L}?|What lies {L}?|Tell me what is {L}.|what is {L}?|What did they leave {L}?""",
}
MORE_WORDINGS = {name: text.replace("\n", "").split("|") for name, text in MORE_WORDINGS.items()}
