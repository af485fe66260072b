"""How a message says that something lacks, is refused, is unknown, is not there or does not fit."""

from __future__ import annotations

import re

NAME = r"[`'\"]?(?:--?)?[\w./\[\]-]{1,60}[`'\"]?"
REPORT = re.compile(
    r"\b(?:file|open|report|submit|raise)\b[^.\n]{0,30}\bbugs?\b|\breport (?:this|it|the (?:bug|issue|error))\b|"
    r"\bthis (?:is (?:probably |likely )?a bug|should (?:never|not) happen)|\binternal (?:error|assert)",
    re.IGNORECASE,
)
LACKS = re.compile(
    rf"\b(?:please|must|have to|has to|need(?:s)? to|should|required to|forgot to)\b(?: also| either| first|,| "
    r"at least)* (?:be )?(?:specify|provide|pass|supply|define|give|specified|provided|supplied|defined|given)\b|"
    r"\byou (?:did not|didn't|have not|haven't|never) (?:pass|provide|specify|set|give|define)|"
    rf"{NAME} (?:is|are) (?:a )?(?:required|mandatory)\b(?! grad)|"
    r"\bmissing (?:a )?(?:required )?(?:argument|option|field|key|parameter|setting)|"
    r"\bno [`'\"][\w.]+(?:\(\))?[`'\"] (?:method|function|class|loader)? ?(?:was |is )?(?:defined|implemented)\b|"
    rf"\bno (?:[\w-]{{2,20}} ){{0,2}}{NAME} (?:was |were |is )?(?:provided|given|specified|passed|set|configured)\b|"
    r"\b(?:got|received|but is|given:?) (?:<class ')?None(?:Type)?\b|"
    rf"{NAME} (?:\w+ )?(?:do|does|did)(?: not|n't) (?:give|provide|define|specify|name|list) (?:any|an?|the)\b|"
    rf"{NAME} (?:was|were|is|are)(?: not|n't) (?:provided|specified|set|given|passed|configured)\b|"
    rf"{NAME} (?:cannot|can't|can not|must not|should not) be (?:None|empty|null)\b|"
    r"\b(?:cannot|can't|can not|unable to) [^.\n]{3,80}? without (?:first )?(?:specify|provid|sett?|"
    r"pass|giv|defin|configur|"
    r"initiali[sz]|install)\w*ing\b|"
    r"(?<!not )\b(?:requires?|needs) (?!grad)[`'\"\w-]|"
    r"\u8bf7(?:\u63d0\u4f9b|\u6307\u5b9a|\u8bbe\u7f6e|\u4f20\u5165)|\u7f3a\u5c11|\u672a"
    r"(?:\u6307\u5b9a|\u8bbe\u7f6e|\u63d0\u4f9b)",
    re.IGNORECASE,
)
REFUSES = re.compile(
    r"\b(?:not|only|n't|no longer|longer)(?: yet| currently| be| been)? (?:supported|implemented|allowed|permitted|"
    r"compatible|usable|valid)\b|"
    r"\b(?:not|n't|only|no longer)(?: yet| currently)? (?:support|allow|accept|work with)s?\b|"
    r"\b(?:unsupported|incompatible|mutually exclusive)\b|"
    r"\b(?:cannot|can't|can not|must not|should not)(?: both)? (?:be )?(?:use|used|combine|combined|mix|mixed|set|"
    r"enable|enabled|specify|specified|passed)\b|"
    r"\b(?:cannot|can't|can not)(?: \w+){1,4} (?:if|when|while|together with)\b|"
    r"\b[Cc]onflict(?:s|ing)? (?:between|with)\b|\b(?:illegal|forbidden|not legal) to \w|"
    r"\bat the same time\b|\bnot both\b|\u4e0d\u652f\u6301|\u4e0d\u517c\u5bb9|\u4e0d\u80fd\u540c\u65f6",
    re.IGNORECASE,
)
UNKNOWN_NAME = re.compile(
    rf"{NAME} (?:does not|doesn't|do not|don't) exist\b|{NAME} (?:is|was|are) (?:not |un)(?:a )?"
    r"(?:valid|known|recogni[sz]ed|registered|available|defined|found in)\b|"
    r"\b(?:unknown|unsupported|invalid) (?:\w+ ){1,2}\w+=['\"]|"
    r"\b(?:unknown|unrecogni[sz]ed|undefined|invalid|unhandled|unexpected) "
    r"(?:\w+ ){0,2}(?:`|'|\"|:|[\w-]*(?:type|name|option|argument|"
    r"template|method|mode|model|format|value|key|backend|"
    r"optimi[sz]er|dataset|stage|task|device|dtype|strategy|flag|command|parameter|instruction))|"
    rf"{NAME} (?:was |were )?not found in\b|\b(?:must|should|can only) be (?:one of(?! (?:int|float|"
    r"str|bool)\b)|either|in \[)|\bone of \[|"
    r"\b(?:possible|allowed|available|valid|supported) (?:\w+ )?(?:values|choices|options|names|keys|"
    r"types|methods)\b|"
    r"\b(?:could not|couldn't|cannot|can't|unable to) find\b|"
    r"\bexpected one of\b|\b(?:choose|select) (?:one )?(?:from|between|among)\b|"
    r"\u4e0d\u5b58\u5728|\u672a\u77e5|\u65e0\u6548",
    re.IGNORECASE,
)
FILE = re.compile(
    r"\b(?:file|folder|directory|path|checkpoint)s?\b[^\n]{0,160}\b(?:does not|doesn't|do not|not) "
    r"(?:exist|found|be found)|"
    r"\b(?:could not|couldn't|cannot|can't|unable to|failed to) "
    r"(?:find|open|locate|read) (?!the (?:file|path) specified)[^\n,;]{0,60}"
    r"(?:\b(?:file|folder|directory|path|checkpoint)\b|[\\/]\w)|"
    r"\bno [\w.* -]{1,40}(?:found|exists?) (?:(?:in|at|under) [`'\"\w/.]|for [`'\"/.~])|"
    r"\bdoes not appear to contain [\w.]+\.\w{2,4}\b|"
    r"[\\/][\w.-]+['\"`]? (?:does not|doesn't) exist|`[\w./\\ -]+` does not exist",
    re.IGNORECASE,
)
VALUE = re.compile(
    rf"{NAME}(?: \([^)\n]{{1,60}}\))? (?:must|should|has to|have to|needs? to) (?:not )?"
    r"(?:be|match|have(?! \w+ed\b)|equal|contain|sum)\b|"
    r"\b(?:is|are|was) (?:too|larger|smaller|greater|less|longer|shorter|lower|higher|more|not (?:evenly )?divisible|"
    r"out of range)\b|\bexceed(?:s|ed)?\b|\bexpected\b[^\n]{1,120}\b(?:but|got|received|found|instead)\b|"
    r"\bexpects\b[^\n]{1,80}\b(?:got|received)\b|"
    r"\b(?:does not|doesn't|do not|don't) (?:match|equal|contain|have enough)\b|\b(?:mismatch|inconsistent)\b|"
    r"\u5fc5\u987b|\u8d85\u8fc7|\u4e0d\u5339\u914d|\u4e0d\u4e00\u81f4",
    re.IGNORECASE,
)
ADVICE = re.compile(
    r"(?:^|[.;:,(]\s+|\bto fix (?:this|it)[,:]? )(?:please |you (?:should|need to|can|could|may want to|"
    r"might want to|must|have to) |"
    r"consider |try |make sure |ensure |either |(?:re)?set |use |run |add |remove |increase |"
    r"decrease |reduce |lower |"
    r"raise |switch |change |pass |disable |enable |call |convert |rename |load |check )"
    r"(?!refer\b|see\b|visit\b|note\b|find\b|check the (?:logs?|stack|traceback)\b|the (?:logs?|stack)\b)|"
    r"\u8bf7",
    re.IGNORECASE,
)
