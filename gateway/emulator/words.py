"""The words an emulated engine knows: common English, chosen for nothing but being short."""

_TEXT = """
about above across after again against all almost along already also always among an and
another answer any are around as ask at away back be because been before began being below
best better between big both bring build but by call came can carry change check city clear
close come common copy could count country course cut day did different do does done door down
draw each early earth easy eat either else end enough even every example eye face fact fall
family far fast father few field find fire first fish five follow food for form found four free
from full gave get give go gold good got great green group grow had half hand hard has have he
head hear heard heart help her here high him his hold home horse hot hour house how hundred
idea if important in inch into is island it its just keep kind king knew know land large last
late later lay lead learn leave left less let letter life light like line list listen little
live long look love low made main make man many map mark may me mean measure men might mile
mind miss money moon more morning most mother mountain move much music must my name near need
never new next night no north not note nothing notice now number of off often oh old on once
one only open or order other our out over own page paper part pass pattern people perhaps
person picture piece place plain plan plant play point port pose possible power press problem
produce product pull put question quick rain ran reach read ready real record red remember rest
right river road rock room round rule run said same sat saw say school science sea second see
seem self sentence serve set several shape she ship short should show side simple since sing
sit six size sleep slow small snow so some song soon sound south space special spell stand star
start state stay step still stood stop story street strong study such sun sure surface system
table take talk teach tell ten test than that the their them then there these they thing think
this those though thought thousand three through time to together told too took top toward town
travel tree true try turn two under unit until up us use usual very voice vowel wait walk want
war warm was watch water way we week weight well went were west what wheel when where which
while white who whole why will wind with wonder wood word work world would write year yes yet
you young your
"""

WORDS = tuple(_TEXT.split())
