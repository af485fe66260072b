"""The forms in which libraries word what they refuse, want, miss or find wrong, each with the relation it states."""

from __future__ import annotations

import re

N = r"(?:[^.,;:\n]|[.,:](?=\w)|\([^()\n]{0,80}\)|\[[^\]\n]{0,200}\]|\{[^{}\n]{0,400}\}|`[^`\n]{1,80}`){1,110}?"
"""A name with what belongs to it; a sign inside of a number, a path or brackets ends it not."""
REST = r"(?:[^;\n]|(?<=\w);(?=\w)){1,200}?"
BE = r"(?:is|are|was|were|be|been)"
NOT = r"(?: not|n't|not)"
MUST = r"(?:must|should|has to|have to|needs? to|can only|may only)"
GOT = (
    r"[,.;]? ?\(?(?:but |and |however,? )?(?:you )?(?:we |I )?(?:it )?(?:just |instead |actually )?"
    r"(?:got|received|found|passed|gave|given|provided|was given|is given|it is|but is|but was|has|"
    r"instead of|was|is|not)"
    r"(?: instead)?:? "
)
VAGUE = r" (?:\w+ )?(?:errors?|exceptions?|behaviou?r|end|reasons?|problems?|failure|EOF|token|results?|termination)\b"
"""What is unexpected or unknown without being a name."""
END = r"(?=[.;!?:,]*$|[.;!?:,] | \(| - )"
CLAUSE = r"(?:(?:For|When|If|In|With|While|Using|On|At|To|As|Since|During) [^,\n]{3,90}, (?:then )?)?"
HEAD = rf"^{CLAUSE}(?:[A-Z][\w.]{{1,30}}: |(?:Oops|Sorry|Warning|Error)[,:!] |[\w.]{{2,60}}(?:\(\))?: )?"
"""What may stand before a sentence's subject: a condition, the name of who speaks."""


def _form(relation: str, *patterns: str) -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((relation, re.compile(pattern, re.IGNORECASE)) for pattern in patterns)


FORMS = (
    *_form(
        "kind",
        rf"{HEAD}(?P<name>{N}) {MUST} be (?P<wants>[^,;]{{2,110}}?){GOT}(?P<has>{REST})$",
        rf"\bexpect(?:ed|s|ing)? (?P<name>{N}) to be (?P<wants>[^,;]{{2,110}}?){GOT}(?P<has>{REST})$",
        rf"{HEAD}(?P<name>{N}) (?:is|are|was) expected to be (?P<wants>[^,;]{{2,110}}?){GOT}(?P<has>{REST})$",
    ),
    *_form(
        "given",
        rf"\bexpect(?:ed|s|ing)?:? (?P<wants>(?:(?! but\b)[^;\n]){{2,110}}?),? (?:but )?(?:got|received|found|"
        rf"was given|instead got|it was|actual(?:ly)?(?: got)?)(?: instead)?:? (?P<has>{REST})$",
        rf"\bwrong (?P<name>[\w ]{{2,40}}): expected (?P<wants>{N})[,;] ?(?:got|found|received) "
        rf"(?P<has>{REST})$",
        rf"\b(?:got|received|found) (?P<has>{N}),? (?:but|while|where) (?:{N} )?(?:expected|expects|needs?|wants?|"
        rf"requires?) (?P<wants>{REST})$",
        rf"\bshould (?:be|have been) (?P<wants>[^,;]{{1,80}}?),? but (?:got|found|received|is|was|has) "
        rf"(?P<has>{REST})$",
    ),
    *_form(
        "excludes",
        rf"\b(?:cannot|can't|can not|must not|should not|don't|do not|never) (?:be )?(?:both )?(?:use|"
        rf"specify|pass|"
        rf"provide|set|combine|mix|have|enable|give)(?:ed)? (?:both )?(?P<first>{N}) (?:and|with|together "
        rf"with|when|while|"
        rf"if|in combination with|at the same time as|along with|alongside|for) (?P<second>{N}){END}",
        rf"\b(?:both|either) (?P<first>{N}) (?:and|or) (?P<second>{N}),? (?:but )?(?:not both|(?:cannot|"
        rf"can't|can not|"
        rf"must not|should not) be|at the same time|are (?:set|given|passed|provided|specified))",
        rf"{HEAD}(?P<first>{N}) and (?P<second>{N}) (?:are mutually exclusive|(?:cannot|can't|can not|must not|"
        rf"should not) (?:both )?be|are (?:not compatible|incompatible)|conflict|cannot both|don't work "
        rf"together)",
        rf"{HEAD}(?P<first>{N}) (?:cannot|can't|can not|must not|should not) be (?:used|combined|set|"
        rf"passed|given|specified|"
        rf"enabled|mixed|provided|applied) (?:together |along |at the same time )?(?:with|when|if|while|"
        rf"in combination "
        rf"with|as|for|alongside) (?P<second>{N}){END}",
        rf"{HEAD}(?P<first>{N}) {BE} (?:not compatible|incompatible|mutually exclusive) with "
        rf"(?P<second>{N}){END}",
        rf"\b(?:pass|specify|use|provide|set|give)\w* (?:only |exactly |at most )?one of (?P<first>{N}) "
        rf"(?:and|or|,) "
        rf"(?P<second>{N}){END}",
        rf"\bonly one of (?P<first>{N}) (?:and|or) (?P<second>{N}) (?:may|can|should|must|is|has)\b",
        rf"\bconflict(?:s|ing)? (?:between|of) (?P<first>{N}) and (?P<second>{N}){END}",
        rf"{HEAD}(?P<first>{N}) (?:conflicts?|clash(?:es)?|collides?|(?:is|are) in conflict) with "
        rf"(?:an? |the )?(?P<second>{N}){END}",
        rf"{HEAD}(?P<first>{N}) (?:is|are|was|were) (?:passed|given|used|set|specified) (?:alongside|together with) "
        rf"(?P<second>{N}){END}",
    ),
    *_form(
        "needs",
        rf"{HEAD}(?P<name>{N}) (?:(?:can|may|should|must|is|are) )?(?:currently )?only (?:be )?(?:valid|"
        rf"used|set|"
        rf"supported|available|possible|enabled|allowed|works?|compatible|implemented|meaningful) (?:only "
        rf")?(?:if|when|"
        rf"with|on|in|for|using|starting from|from|together with) (?P<wants>{N}){END}",
        rf"{HEAD}(?P<wants>{N}) (?:is|are|{MUST} be) (?:required|needed|mandatory|set|given|provided|"
        rf"specified|passed|"
        rf"defined|installed|enabled) (?:for|by|when|if|with|in order to) (?!grad)(?P<name>{N}){END}",
        rf"\b(?:to|in order to) (?P<name>(?:use|run|load|train|save|enable|get|apply) {N}),? (?:please "
        rf")?(?:you )?"
        rf"(?:need(?: to)?|must|should|have to|please|first)(?: to)? (?P<wants>{N}){END}",
        rf"{HEAD}(?P<name>{N}) (?:require|need)s? (?!grad\b)(?:that |at least |the )*(?P<wants>{N}){END}",
        rf"\b(?:if|when) (?:using |you use |you want to |passing |setting )?(?P<name>{N}),? (?:then "
        rf")?(?:please |you )?"
        rf"(?:must|should|need to|have to|please)(?: also)? (?P<wants>{N}){END}",
    ),
    *_form(
        "refused",
        r"^unsupported (?P<name>(?!\w+: )[^:\n]{3,80}?)[.!]?$",
        rf"{HEAD}(?P<name>{N}) (?:(?:is|are|was) )?(?:currently |yet |still )?(?:not|n't|no longer|un)(?: yet| "
        rf"currently| "
        rf"officially| directly)? ?(?:supported|implemented|allowed|permitted|available|possible|usable|"
        rf"legal)(?: yet)?"
        rf"(?: (?P<how>(?:for|with|on|in|by|when|while|if|unless|because|since|without|together|from|as|using) "
        rf"{N}))?{END}",
        rf"{HEAD}(?P<name>{N}) (?:aren't|isn't) (?:yet |currently )?(?:supported|implemented|allowed)"
        rf"(?: (?P<how>(?:for|with|on|in|by|when|if) {N}))?{END}",
        rf"{HEAD}(?P<name>{N}) (?:is|are) (?:invalid|illegal|not valid|not legal|meaningless|incorrect) "
        rf"(?P<how>(?:for|with|on|in|when|while|without) {N}){END}",
    ),
    *_form(
        "lacks_support",
        rf"{HEAD}(?P<first>{N}),? (?:(?:is|are|has|have) [^,;\n]{{2,60}}? )?(?:and |which |that |so )?"
        rf"(?:do|does|did)(?: not|n't)(?: yet| currently| natively| directly)? (?:support|allow|accept|"
        rf"work with|handle|implement|take|know|recognize)(?:ed)? (?P<second>{N}){END}",
        rf"{HEAD}(?P<second>{N}) (?:are|is) not supported by (?P<first>{N}){END}",
    ),
    *_form(
        "only",
        rf"{HEAD}(?P<name>{N}) (?:currently )?(?:only|can only|may only) (?:currently )?(?:supports?|"
        rf"accepts?|works? "
        rf"(?:with|on|for)|takes?|allows?|handles?|applies to|runs? on|be \w+ (?:with|on|for|in)) "
        rf"(?P<wants>{N}){END}",
        rf"\b(?P<name>{N} )?can only (?P<wants>{N}){END}",
        rf"\bonly (?P<wants>{N}) (?:is|are|can be) (?:currently )?(?:supported|allowed|accepted|valid|"
        rf"implemented|used)"
        rf"(?: (?:for|by|with|in|as) (?P<name>{N}))?{END}",
        rf"{HEAD}(?P<wants>{N}) (?:is|are) the only (?:supported|allowed|valid|possible|available|accepted) "
        rf"(?P<name>{N}){END}",
        rf"^(?:currently |we )?only (?:supports?|accepts?|allows?|handles?) (?P<wants>{N}){END}",
    ),
    *_form(
        "unknown",
        rf"\b(?:unknown|unrecogni[sz]ed|undefined|unsupported|unhandled|invalid)(?!{VAGUE}) "
        rf"(?P<kind>[a-z]\w+(?: \w+){{1,4}}): (?P<name><[^<>]{{2,90}}>|[`'\"<(\[]?[^\s,;]{{2,80}}){END}",
        rf"\b(?:unknown|non-?existent|unrecogni[sz]ed|undefined|unsupported|unexpected|unhandled|unrecognised|"
        rf"illegal)(?!{VAGUE})"
        rf" (?P<kind>[a-z][\w ]{{1,40}}?)(?: (?:specified|given|provided|found|passed|name|value))?(?::| "
        rf"?=| of| for|,)? "
        rf"(?P<name>[`'\"<(\[]?[^\s,;]{{2,80}}){END}",
        rf"{HEAD}(?P<name>{N}) (?:is|was) (?:not|n't) (?:a |an )?(?:valid|known|recogni[sz]ed|registered|"
        rf"supported|legal|"
        rf"one of(?: the)?)(?: (?P<kind>{N}))?{END}",
        rf"\binvalid (?P<kind>[a-z][\w -]{{1,40}}?)(?: (?:specified|given|provided|found|passed|"
        rf"value))?(?::| ?=|,)? "
        rf"(?P<name>[`'\"<(\[]?[^\s,;]{{2,80}}){END}",
        rf"(?P<name>{N}) is an? (?:unknown|invalid|unsupported|unrecogni[sz]ed) (?P<kind>{N}){END}",
    ),
    *_form(
        "choice",
        rf"{HEAD}(?P<name>{N}) (?:{MUST} be|can be) (?P<wants>(?:either|one of|any of|in "
        rf"[\[({{]|in (?:the )?(?:range|interval)|between|among|`?['\"]\w)[^;\n]{{2,150}}?){END}",
        rf"\b(?:available|possible|allowed|valid|supported|existing) (?P<name>[\w ]{{3,40}}?)(?: (?:are|"
        rf"is|include))?[:=]? "
        rf"(?P<wants>[\[({{'\"`]{REST})$",
    ),
    *_form(
        "empty",
        rf"{HEAD}(?P<name>{N}) (?:is|are|was|were|cannot be|can't be|must not be|should not be|may not be|"
        rf"to be) (?:an )?empty",
        rf"\b(?:got|received|passed|given|found|with|is) an empty (?P<name>{N}){END}",
        r"\b(?P<name>\w+\(\) (?:arg|iterable argument)) is an empty sequence",
        rf"\b(?P<name>{N}) (?:must|should) (?:contain|have|be|include) (?:at least|more than) (?:one|1|0|"
        rf"zero)\b",
    ),
    *_form(
        "apart",
        rf"\b(?:mismatch|inconsistency|discrepancy) (?:between|of) (?P<first>{N}) and (?P<second>{N}){END}",
        rf"{HEAD}(?P<first>{N}) (?:do|does|did|must|should)(?: not|n't) (?:match|equal|fit|correspond to|"
        rf"agree with|align with|"
        rf"exceed) (?P<second>{N}){END}",
        rf"{HEAD}(?P<first>{N}) {MUST} (?:match|equal|be equal to|be the same (?:\w+ )?as|be (?:evenly "
        rf")?divisible by|be a "
        rf"multiple of|have the same (?:{N}) as|be (?:less|greater|smaller|larger|lower|higher|shorter|"
        rf"longer) than"
        rf"(?: or equal to)?|be at least|be at most|correspond to|be <=?|be >=?|be on the same \w+ as) "
        rf"(?P<second>{N}){END}",
        rf"{HEAD}(?P<first>{N}) and (?P<second>{N}) (?:{MUST} (?:match|be equal|be the same|have the same|"
        rf"be of the same|"
        rf"be on the same)|(?:do|does)(?: not|n't) match|are (?:different|not equal|inconsistent|not "
        rf"consistent)|differ)",
        rf"{HEAD}(?P<first>{N}) (?:is|are|was) (?:not (?:evenly )?divisible by|not a multiple of|not "
        rf"equal to|different "
        rf"from|inconsistent with|(?:too )?(?:larger|greater|smaller|longer|shorter|higher|lower|less|"
        rf"more) than|out of "
        rf"range (?:for|of)|beyond|not in (?!the\b)) (?P<second>{N}){END}",
        rf"{HEAD}(?P<first>{N}) exceeds? (?P<second>{N}){END}",
        rf"\b(?P<first>{N}) vs\.? (?P<second>{N}){END}",
        rf"{HEAD}(?P<first>{N}) != (?P<second>{N}){END}",
        rf"{HEAD}(?P<first>{N}) (?:differs?|deviates?) from (?P<second>{N}){END}",
        rf"{HEAD}(?P<first>{N}) (?:is |are )?out of bounds (?:for|of) (?P<second>{N}){END}",
    ),
    *_form(
        "differ",
        rf"{HEAD}(?P<name>{N}) mismatch(?:es|ed)?(?::? (?P<how>{REST}))?$",
        rf"\b(?:mismatch(?:ed|es)?|inconsistent|inconsistency) (?:in |of |between )?(?P<name>{N})(?:[:.,] "
        rf"(?P<how>{REST}))?$",
        rf"{HEAD}(?P<name>{N}) (?:must|should|do not|don't) match{END}",
    ),
    *_form(
        "in_both",
        rf"{HEAD}(?P<name>{N}) (?:is |are |was |were )?(?:specified|given|set|defined|passed|present|declared) "
        rf"(?:in |by |at )?(?P<how>both {N} and {N}){END}",
    ),
    *_form(
        "twice",
        rf"^(?:[\w ]{{2,40}}: )?(?P<name>{N}) (?:occurs?|appears?|is listed|is registered|was found|exists?) "
        rf"(?P<how>(?:multiple times|twice|more than once|several times)(?: in {N})?){END}",
        rf"{HEAD}(?P<name>{N}) (?:already exists?|(?:is|are|was|has|have) (?:been )?already(?: been)? "
        rf"(?P<how>\w+))",
        rf"{HEAD}(?P<name>{N}) (?:has|have|is|was) (?:already|previously) (?:been )?(?P<how>\w+)",
        rf"\b(?:duplicate[ds]?|repeated|multiple) (?P<name>(?:\w+ )?[`'\"]?{N}){END}",
    ),
    *_form(
        "unprepared",
        rf"{HEAD}(?P<name>{N}) (?:has|have|is|are|was|were)(?: not|n't)(?: yet)? (?:yet )?(?:been "
        rf")?(?P<how>initiali[sz]ed|"
        rf"built|loaded|prepared|fitted|trained|registered|started|called|created|computed|set up|"
        rf"compiled|prefetched|"
        rf"downloaded|activated|launched|opened|ready|attached)\b",
    ),
    *_form(
        "order",
        rf"{HEAD}(?P<name>{N}) {MUST} be (?P<how>(?:called|initiali[sz]ed|set|created|loaded|run|prepared|"
        rf"launched|used) "
        rf"(?:before|after|first|inside|outside|within|once)\b{REST}){END}",
    ),
    *_form(
        "before",
        r"(?<!attempted to )(?<!tried to )(?<!not )(?<!cannot )(?<!can't )\b(?:call|run|execute|initiali[sz]e|"
        r"start|build|load|use|import|set|install|create|register|convert|move) "
        rf"(?P<first>{N}) (?:first|before (?:you |importing |calling |using |loading )*(?P<second>{N})){END}",
        rf"{HEAD}(?P<first>{N}) {MUST} (?:come|be done|happen|be imported|stand) before (?P<second>{N}){END}",
    ),
    *_form(
        "broken",
        rf"{HEAD}(?P<name>{N}) (?:is|are|was|were|seems?(?: to be)?|appears?(?: to be)?|looks?) (?P<how>corrupt(?:ed)?|"
        rf"broken|damaged|malformed|incomplete|truncated|inconsistent|outdated|stale){END}",
        rf"^(?:malformed|corrupt(?:ed)?|broken|damaged|truncated) (?P<name>{N}){END}",
        rf"{HEAD}(?P<name>{N}) (?:is|was|were|are) (?P<how>(?:not|in)(?: been)? ?(?:installed|built|configured|set up|"
        rf"initiali[sz]ed|loaded|saved|downloaded) ?(?:correctly|properly|completely)){END}",
    ),
    *_form(
        "late",
        rf"{HEAD}(?P<name>{N}) (?:has |have )?timed out\b",
        rf"\btim(?:ed|e) out (?:while |when |waiting for |on )?(?P<name>{N}){END}",
    ),
    *_form(
        "wanted",
        rf"\b(?:you )?(?:please |must |need to |have to |should |has to |required to |forgot to )+(?:also "
        rf"|at least |"
        rf"either |first )*(?:specify|provide|pass|supply|define|give|set|enter)(?:ed|d)? (?P<name>{N}){END}",
        rf"{HEAD}(?:either )?(?P<name>{N}) {MUST} be (?:provided|specified|set|given|passed|defined|"
        rf"supplied|present|"
        rf"configured|available)\b",
        rf"{HEAD}(?P<name>{N}) (?:is|are) (?:required|mandatory)(?! grad)\b",
        rf"{HEAD}(?P<name>{N}) (?:was|is|were|are|has|have)(?: been)?(?: not|n't)(?: been)? (?:provided|"
        rf"given|set|specified|"
        rf"defined|passed|configured)\b",
        rf"{HEAD}(?P<name>{N}) (?:cannot|can't|can not|must not|should not|may not) be (?:None|null|unset)\b",
        rf"{HEAD}(?P<name>{N}) (?:is|was|are) (?:unexpectedly )?None{END}",
        rf"\bexpected (?P<name>{N}) to be (?:set|not None|given|provided)\b",
        rf"\bmissing (?:a |an |the |required |argument |key |keys |value |field )*(?P<name>[`'\"]?{N}){END}",
        rf"\bneed (?:either )?(?:an? |the )?(?P<name>{N}) (?:to|for|in order)\b",
    ),
    *_form(
        "absent",
        rf"\b(?:could not|couldn't|cannot|can't|can not|unable to|did not|didn't|failed to|not able to) "
        rf"(?:find|locate|found|"
        rf"detect|see) (?P<name>{N})(?: (?:in|at|for|under|on|inside|from|among|within) (?P<place>{N}))?{END}",
        rf"\bno (?P<name>{N}) (?:was |were |is |are |has been |have been )?(?:found|available|exists?|"
        rf"registered|detected|"
        rf"provided|given|specified|present|matching|left|installed)(?: (?:in|at|for|under|on|to|with) "
        rf"(?P<place>{N}))?{END}",
        rf"{HEAD}(?P<name>{N}) (?:was|were|is|are|could|can)(?: not|n't|not)(?: be)? (?:found|present|"
        rf"located|available|there|contained|"
        rf"defined|listed|included|part)(?: (?:in|at|for|under|on|inside|of|among) (?P<place>{N}))?{END}",
        rf"{HEAD}(?P<name>{N}) (?:do|does)(?: not|n't) exists?(?: (?:in|at|on|under) (?P<place>{N}))?{END}",
        rf"{HEAD}(?P<place>{N}) (?:do|does|did)(?: not|n't) (?:have|contain|include|define|provide|hold|"
        rf"appear to have|"
        rf"seem to have|specify) (?P<name>{N}){END}",
        rf"{HEAD}(?P<place>{N}) (?:has|have|had|contains?) no (?P<name>{N}){END}",
        rf"{HEAD}(?P<name>{N}) (?:is |are |was |were )?(?:required|expected|needed) but (?:it )?(?:is |"
        rf"was |were )?not "
        rf"(?:present|found|given|there|available|set|provided)(?: (?:in|at|for|on) (?P<place>{N}))?{END}",
        rf"{HEAD}(?P<name>{N}) not (?:found|present)(?: (?:in|at|on) (?P<place>{N}))?{END}",
        rf"^no (?P<name>{N}) (?:requested|selected|chosen|configured|specified|enabled){END}",
        rf"{HEAD}(?P<name>{N}) (?:is|are) not in (?P<place>{N}){END}",
        r"\bno (?:such )?\w+(?: \w+){0,2}?(?: (?:with|of|by)(?: the| that)? (?:name|id|type|path|key))?: "
        rf"(?P<name>[^\s,;]{{1,80}}?)(?: (?:was |were |is )?(?:found|exists?|available|known))?"
        rf"(?: (?:in|at|under|for|inside) (?P<place>{N}))?{END}",
    ),
    *_form(
        "failed",
        rf"\b(?:tried|attempted|attempting|trying) to (?P<name>{N}),? but (?P<how>{REST})$",
    ),
    *_form(
        "together",
        r"^(?P<values>(?:[A-Za-z][\w. ()-]{0,40}[:=] ?[\w./-]{1,40}[,;] ?(?:and )?){1,4}"
        r"[A-Za-z][\w. ()-]{0,40}[:=] ?[\w./-]{1,40})[.!]?$",
    ),
    *_form(
        "must",
        rf"{HEAD}(?P<name>{N}) {MUST} (?:not )?(?P<wants>(?:be|have|contain|start|end|include|return|"
        rf"inherit|use|match|only) {REST})$",
        rf"^(?P<name>[A-Za-z][\w ()-]{{2,50}}: ?[\w.-]{{1,20}}) {MUST} (?:not )?(?P<wants>(?:be|have) {REST})$",
        rf"\bexpect(?:ed|s|ing)? (?P<name>{N}) to (?P<wants>(?:be|have|contain|match|return|start|end|come) {REST})$",
    ),
    *_form(
        "impossible",
        rf"(?P<name>{N} (?:cannot|can't|can not|could not|couldn't) be {N}){END}",
        rf"(?:^|\b)(?P<name>(?:^|\byou )(?:should not|must not|do not|don't|are not allowed to|may not) {N}){END}",
    ),
    *_form(
        "failed",
        rf"\b(?:failed|unable|fails) to (?P<name>{N})(?:(?::| because| due to| since|\. Reason:) "
        rf"(?P<how>{REST}))?$",
        rf"\b(?:could not|couldn't|cannot|can't|can not) (?!be )(?P<name>{N})(?:(?::| because| due to| "
        rf"since|, because|, as) "
        rf"(?P<how>{REST}))?{END}",
    ),
    *_form(
        "went_wrong",
        rf"\berror (?:while |when |during |in )?(?P<name>\w+ing {N}): (?P<how>{REST})$",
        rf"{HEAD}(?P<name>{N}) (?:has |have )?failed(?::| because| due to) (?P<how>{REST})$",
    ),
    *_form(
        "unfit",
        r"^(?P<name>(?:(?!has )[\w.`'\[\]()-]+ ){1,8}?)has (?P<what>dtype|type|shape|size|device|rank|length|layout|"
        r"format|version) (?P<value>[^\s,;]{1,60}?)[.!]?$",
    ),
    *_form(
        "contradicts",
        rf"^(?P<first>{CLAUSE}{N}),? (?:but|however,?|whereas) (?P<second>{REST})[.!]?$",
    ),
)
"""Tried in this order on each sentence: the forms that say most come first."""
