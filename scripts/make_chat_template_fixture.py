# SPDX-License-Identifier: MIT
"""Writes tests/unit/data/fixtures/chat_templates.json: templates that use every construct, and what transformers makes of them.

A case is a template, the text that it gives (null: an error) and the characters that {% generation %} marks.
Needs transformers 5 and jinja2. Usage: make_chat_template_fixture.py [repository root]
"""
import json
import pathlib
import sys

from transformers.utils.chat_template_utils import _compile_jinja_template, _render_with_assistant_indices

ROOT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
VARIABLES = {
    "messages": [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "Grüße, 世界 🌍\n"},
                 {"role": "assistant", "content": "It's \"fine\"", "items": 3},
                 {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"b": [1, 2.5, None], "a": True}}}]}],
    "tools": None, "eos_token": "</s>", "add_generation_prompt": True,
    "n": 7, "x": 2.5, "big": 9007199254740993, "text": "one two  three", "list": [3, 1, 2], "empty": [], "pairs": [["a", 1], ["b", 2]],
    "dict": {"b": 1, "A": 2, "c": {"d": [10, 20]}}, "rows": [{"k": "b", "v": 1}, {"k": "a", "v": 2}, {"k": "B", "v": 3}, {"v": 4}],
}
# Each is printed: {{ ... }}.
EXPRESSIONS = """
1 + 2 * 3 - 4 // 3 % 2|||2 ** 3 ** 2|||-2 ** 2|||7 / 2|||-7 // 2|||-7 % 3|||7 % -3|||7.5 // -2|||-7.5 % 2|||1e3|||1_000 + 0|||2 ** -1|||2 ** 0.5|||1 / 0|||n // 0
'a' + 1|||'ab' * 3|||[1] * 2|||[1] + [2]|||(1,) + (2, 3)|||'a' ~ 1 ~ none ~ true ~ [1.0]|||9223372036854775807 + 0|||true + 1|||- true|||+ 2.5|||- 'a'|||0.1 + 0.2|||1e16|||1e15|||1e-5|||0.0001|||123456789012345678.0|||5 // 0.3|||1e308 * 10|||-1e308 * 10|||2.0 ** 3
1 < 2 < 3|||1 < 3 < 2|||1 == 1.0|||true == 1|||'a' < 'b'|||[1, 2] < [1, 3]|||(1, 2) == (1, 2)|||[1] == (1,)|||'a' < 1|||1 in [1, 2]|||'wo' in text|||1 in text|||'b' in dict|||'x' not in dict|||not 1 in list|||none == none|||missing == missing|||missing == none|||1 in (1, 2)|||3 in range(3)|||1 != 2|||2 >= 2|||2 <= 1|||{'a': 1} == {'a': 1.0}
1 if true else 2|||1 if false|||(1 if false) is undefined|||1 if false else 2 if false else 3|||true and 0|||'' or 'b'|||not none|||not ''|||0 or none or missing|||n > 5 and x < 3 or false|||not true and false|||1 if 2 if 3
missing|||missing.a|||missing['a']|||missing + 1|||missing ~ 'a'|||missing()|||dict.missing|||dict.missing.a|||none.a|||none.a.b|||list.a|||n.a|||text.a|||missing | length|||missing | list|||missing | join|||missing | upper|||missing | tojson|||missing | int|||missing | string|||missing | first|||missing | items | list|||missing | dictsort|||missing in [1]|||1 in missing|||missing is iterable|||missing is sequence|||missing is mapping|||[missing]|||missing | default('d')|||missing | trim|||missing[1:]|||missing < 1|||missing | sum|||missing | sort|||missing | reverse | list
[1, 'a', none, true, 2.0, (1,), ()]|||{'a': 1, 2: [3], none: 'x', true: {}}|||{}|||[]|||()|||(1)|||(1,)|||1, 2|||'it\\'s'|||['it\\'s', "a\\"b", 'both\\'"']|||['\\n\\t\\\\', '\\x41\\u00e9\\U0001F600\\x07\\u200b\\xad', '\\101']|||'a' 'b' "c"|||'\\d\\
e'|||[none, 'None']|||[1.5e300, 1e-7, -0.0]|||[range(3)] | length|||dict|||dict.items()|||dict.keys()|||dict.values()|||{'a': 1, 'a': 2}|||[dict.get]|length|||{1: 'a', 1.0: 'b'}
list[0]|||list[-1]|||list[5]|||list['a']|||list[1:]|||list[::-1]|||list[-2:]|||list[:-1]|||list[5:]|||list[::2]|||list[2:0:-1]|||list[::-2]|||list[10:-10:-1]|||list[1:1]|||list[::0]|||text[0]|||text[-1]|||text[::-1]|||text[4:7]|||messages[1].content[7:9]|||messages[1].content[-2]|||messages[1].content[::-1]|||messages[1].content | length|||dict['b']|||dict.c.d[1]|||dict.c['d'].0|||dict['c']['x'] is defined|||messages[2]['items']|||(1, 2, 3)[1:]|||range(5)[1:3] | list|||range(5)[-1]|||range(9)[::3] | list|||dict[1:]|||list[true]|||list[1.0]|||list['0']|||rows[0]['k']|||list[:none]|||list[-100:100]
text.upper()|||'ßﬁǆ'.upper()|||'ßﬁǆ'.title()|||'ΑΣ ΌΣΟΣ'.lower()|||"they're x2y HELLO".title()|||'hELLO wORLD'.capitalize()|||'ǆa'.capitalize()|||text.split()|||text.split(' ')|||text.split(' ', 1)|||text.split(none, 1)|||text.rsplit(' ', 1)|||text.rsplit(none, 1)|||' a b '.split(maxsplit=1)|||text.split('')|||'a,b,,c'.split(',')|||'a--b--c'.rsplit('--')|||'  a '.strip()|||'xxaxyx'.strip('xy')|||'  a '.lstrip()|||'  a '.rstrip()|||'\\u00a0\\u2003a\\u200b'.strip()|||'<s>a'.lstrip('<s>')|||text.startswith('one')|||text.startswith(('x', 'o'))|||text.endswith('ee')|||text.replace('two', '2')|||text.replace(' ', '_', 2)|||'ab'.replace('', '-')|||'aaa'.replace('a', 'b', 0)|||text.find('t')|||text.find('zz')|||text.rfind('e')|||'世界x'.find('x')|||text.index('zz')|||text.count('e')|||'aaaa'.count('aa')|||', '.join(['a', 'b'])|||', '.join([1])|||'-'.join(dict)|||'a\\nb\\r\\nc\\n'.splitlines()|||'a\\nb'.splitlines(true)|||'12'.isdigit()|||'1a'.isdigit()|||''.isdigit()|||'ab1'.isalnum()|||'ab'.isalpha()|||' \\n'.isspace()|||'abc'.removeprefix('a')|||'abc'.removesuffix('c')|||'{} {1}'.format(1, 2)|||'{} {}'.format(1, 'b')|||'{0}-{a}'.format(1, a=none)|||'{{}}'.format()|||'{:.2f}|{:03d}'.format(3.14159, 7)|||'{x}'.format()|||text.nothing()|||text.upper(1)|||'%s and %d' % ('a', 3)|||'%5.1f|%-4s|%04d|%x' % (2.25, 'ab', 42, 255)|||'%s' % 'x'|||'%s%%' % 5|||'%d' % 'a'|||'%s %s' % 'a'|||'%r' % 'a'|||'%s' | format('b')
dict.get('b')|||dict.get('x')|||dict.get('x', 5)|||dict.get('c').get('d')|||dict.get()|||dict.items() | list|||dict.keys() | list|||dict.values() | first|||dict.update({'z': 1})|||dict.pop('b')|||list.append(1)|||list.index(2)|||list.count(1)|||list.index(9)|||list.sort|||(dict.pop is defined)|||dict.__class__|||text.__len__()|||dict.copy()
text | upper|||'AbC' | lower|||'ab cD-eF(g [h {i <j' | title|||'aB cD' | capitalize|||' a ' | trim|||'xax' | trim('x')|||text | length|||text | count|||list | length|||dict | length|||5 | length|||none | length|||range(4) | length|||list | first|||list | last|||empty | first|||empty | last is undefined|||text | first|||text | last|||list | join|||list | join(', ')|||rows | join('+', attribute='v')|||text | replace('one', '1')|||'aaa' | replace('a', 'b', 2)|||5 | replace('5', '6')|||none | default('d')|||none | default('d', true)|||'' | default('d', boolean=true)|||'' | d('e')|||missing | default|||list | list|||text | list|||dict | list|||none | list|||5 | string|||none | string|||[1] | string ~ 'x'
'12' | int|||'12.7' | int|||'x' | int|||'x' | int(5)|||'0x1f' | int(base=16)|||' 42 ' | int|||'1_0' | int|||2.9 | int|||-2.9 | int|||true | int|||none | int|||[] | int(3)|||'1e3' | int|||'nan' | int|||'2.5' | float|||'x' | float|||'x' | float(1.5)|||'inf' | float|||3 | float|||none | float|||'1e400' | float|||-5 | abs|||-5.5 | abs|||'a' | abs|||2.5 | round|||3.5 | round|||2.675 | round(2)|||5 | round|||-2.5 | round|||2.1 | round(method='ceil')|||2.9 | round(0, 'floor')|||2.345 | round(2, 'ceil')|||'a' | round|||1234.5678 | round(1)|||2.5 | round(method='x')
dict | items | list|||dict | dictsort|||dict | dictsort(true)|||dict | dictsort(by='value')|||{'b': 1, 'A': 2, 'C': 0} | dictsort(reverse=true)|||{'b': 1, 'a': 2} | dictsort(by='value')|||5 | items | list|||rows | map(attribute='v') | list|||rows | map(attribute='k') | list|||rows | map(attribute='k', default='-') | list|||['a', 'b'] | map('upper') | join|||[' a '] | map('trim') | list|||['1', '2'] | map('int') | sum|||[[1, 2], [3]] | map('first') | list|||[[1, 2]] | map(attribute='1') | list|||rows | map(attribute='k.x') | list|||messages | map(attribute='role') | unique | list|||rows | map | list|||['a'] | map('nothing') | list|||[1, 2] | map('replace', '1', 'x') | list|||[] | map('nothing') | list
rows | selectattr('k') | list | length|||rows | selectattr('v', 'gt', 2) | map(attribute='v') | list|||rows | selectattr('k', 'equalto', 'a') | list|||rows | rejectattr('k', 'defined') | list|||messages | selectattr('role', 'equalto', 'user') | list | length|||messages | selectattr('role', 'eq', 'x') | list|||messages | rejectattr('role', '==', 'system') | map(attribute='role') | join(',')|||[0, 1, 2] | select | list|||[1, 2, 3] | select('odd') | list|||[1, 2, 3] | reject('odd') | list|||[1, 2, 3] | select('in', [1, 3]) | list|||['a', 1] | select('string') | list|||[1, 2] | select('nothing') | list|||messages | selectattr('role', 'in', ['user', 'system']) | map(attribute='role') | list|||rows | selectattr('v', 'divisibleby', 2) | list | length|||rows | selectattr | list|||(rows | selectattr('v'))[0]|||rows | selectattr('v') | length|||(rows | selectattr('v') | first).v|||missing | selectattr('a') | list
[3, 1, 2] | sort|||['b', 'A', 'c'] | sort|||['b', 'A', 'c'] | sort(case_sensitive=true)|||[3, 1, 2] | sort(reverse=true)|||rows[:3] | sort(attribute='k') | map(attribute='v') | list|||rows[:3] | sort(attribute='k,v') | map(attribute='v') | list|||rows[:3] | sort(true, attribute='k') | map(attribute='v') | list|||[1, 'a'] | sort|||dict | sort|||['a', 'A', 'b'] | unique | list|||['a', 'A', 'b'] | unique(true) | list|||[1, 1.0, true, 2] | unique | list|||list | reverse | list|||text | reverse|||list | reverse | first|||list | reverse | last|||list | max|||list | min|||empty | max|||rows | max(attribute='v')|||['b', 'C'] | max|||list | sum|||rows | sum(attribute='v')|||[[1], [2]] | sum(start=[])|||[1, 2, 3, 4, 5] | batch(2) | list|||[1, 2, 3] | batch(2, 'x') | list
'a\\nb\\n\\nc' | indent|||'a\\nb\\n\\nc' | indent(2, true)|||'a\\nb\\n\\nc' | indent(2, blank=true)|||'a\\nb' | indent('> ')|||'a\\n' | indent|||5 | indent|||'' | indent(first=true)|||'<b>&"' | safe|||('<b>' | safe) + '<i>'|||'<i>' + ('<b>' | safe)|||('<b>' | safe) ~ '<i>'|||('<b>' | safe).replace('b', '<')|||['<b>' | safe]|||'<b>\\'"&' | escape|||'<' | e | e|||('<b>' | safe) is string|||('<b>' | safe) == '<b>'|||text | upper(1)|||text | list(1)|||n is string 'a'|||missing is callable|||('<b>' | safe) | list|||4.5 is odd|||{[1]: 2}|||[1] in dict|||dict[[1]]|||[[1]] | unique | list|||'x' % dict|||'x' % 'y'|||text | nothing|||text | upper | lower | title|||5 | tojson | safe + '<'
dict | tojson|||dict | tojson(indent=2)|||dict | tojson(indent=0)|||dict | tojson(indent='--')|||[] | tojson(indent=2)|||[{}, [], ''] | tojson(indent=1)|||'Grüße \\u2028 🌍 </s> \\x7f \\x01 \\b\\f"\\\\' | tojson|||'Grüße 🌍 \\x7f' | tojson(ensure_ascii=true)|||[1, 2.0, 1e20, none, true] | tojson|||{1: 2, none: 3, true: 4, 1.5: 5} | tojson|||(1, 2) | tojson|||dict | tojson(sort_keys=true)|||dict | tojson(separators=(',', ':'))|||dict | tojson(indent=2, separators=(',', ' = '))|||messages[3] | tojson|||range(2) | tojson|||dict.items() | tojson|||('<b>' | safe) | tojson|||dict | tojson(true)|||dict | tojson(false, 4)|||('nan' | float) | tojson|||{(1, 2): 3} | tojson|||dict | tojson(unknown=1)
missing is defined|||missing is not defined|||n is defined|||missing is undefined|||none is none|||n is none|||'a' is string|||1 is string|||dict is mapping|||list is mapping|||list is iterable|||text is iterable|||n is iterable|||dict is iterable|||range(2) is iterable|||list is sequence|||text is sequence|||dict is sequence|||n is sequence|||dict.items() is sequence|||range(2) is sequence|||(list | reverse) is sequence|||(list | reverse) is iterable|||1 is number|||true is number|||1.5 is number|||'1' is number|||true is boolean|||1 is boolean|||true is true|||1 is true|||false is false|||0 is false|||1 is integer|||true is integer|||1.0 is integer|||1.0 is float|||1 is float|||3 is odd|||4 is even|||4 is odd|||-3 is odd|||'a' is odd|||6 is divisibleby 3|||6 is divisibleby(4)|||1 is eq 1|||1 is equalto(2)|||1 is ne 2|||1 is lt 2|||3 is gt 2|||2 is ge 2|||2 is le 1|||2 is sameas 2|||1 is sameas true|||none is sameas none|||1 is in [1]|||'a' is in 'abc'|||'ab' is lower|||'aB' is lower|||'AB' is upper|||'1' is upper|||range is callable|||text is callable|||dict.get is callable|||n is not string|||not n is string|||n is number and x is number|||n is string or n is integer|||missing is defined and missing.a|||n is nothing|||'a' is escaped|||n is defined is defined|||(n is defined) is true|||1 is lessthan 2|||2 is greaterthan 1
range(5) | list|||range(2, 5) | list|||range(5, 0, -2) | list|||range(0) | list|||range(1, 2, 0)|||range(2000000)|||range('a')|||dict(a=1, b=2)|||namespace(a=1).a|||namespace({'a': 2}).a|||namespace(a=1).b is defined|||raise_exception('no')|||strftime_now('%%')|||strftime_now('')|||list()|||n()|||dict(b)|||range.x is defined|||[strftime_now, raise_exception] | length
""".strip("\n").replace("\\\n", "\0").replace("\n", "|||").replace("\0", "\\\n").split("|||")
# One a line.
LINES = r"""
a{% if n == 7 %}b{% elif n == 8 %}c{% else %}d{% endif %}e
{% if missing %}x{% elif none %}y{% elif list %}z{% endif %}
x {%- if true -%}   y   {%- endif -%}   z
a   {#- comment -#}   b {# {{ x }} {% if %} #}
{% raw %}{{ not }} {% evaluated %}{% endraw %}
{%- raw -%}  {{ x }}  {%- endraw -%}  end
{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}|{% endfor %}
{% for x in list %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }}{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }} {% endfor %}
{% for x in [] %}x{% else %}none{% endfor %}{% for x in [1] %}x{% else %}none{% endfor %}
{% for k, v in dict.items() %}{{ k }}={{ v }};{% endfor %}{% for a, b in pairs %}{{ a }}{{ b }}{% endfor %}
{% for k in dict %}{{ k }}{% endfor %}{% for c in 'añ世' %}[{{ c }}]{% endfor %}
{% for x in list if x > 1 %}{{ loop.index }}/{{ loop.length }}:{{ x }}{{ loop.last }} {% else %}none{% endfor %}
{% for x in list if x > 9 %}a{% else %}none{% endfor %}
{% set ns = namespace(n=0) %}{% for x in [1, 2, 3, 4] if x > ns.n %}{% set ns.n = x + 1 %}{{ x }}{% endfor %}
{% set ns = namespace(n=0) %}{% for x in [1, 2, 3, 4] if x > ns.n %}{{ loop.last }}{% set ns.n = x + 1 %}{{ x }}{% endfor %}
{% for x in [1, 2, 3, 4] %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %}
{% for x in [1, 2] %}{% for y in [1, 2, 3] %}{% if y == 2 %}{% break %}{% endif %}{{ x }}{{ y }} {% endfor %}{% endfor %}
{% for x in [1] %}{% break %}{% else %}else{% endfor %}{% for x in [1, 2] %}{% continue %}{% else %}else{% endfor %}
{% break %}
{% for x in missing %}a{% endfor %}{% for x in n %}a{% endfor %}
{% for a, b in [[1, 2, 3]] %}{% endfor %}
{% for x in (1, 2) %}{{ x }}{% endfor %}{% for x in 1, 2 %}{{ x }}{% endfor %}
{% set a = 1 %}{% for x in [1, 2] %}{{ a }}{% set a = x * 10 %}{{ a }} {% endfor %}{{ a }}
{% set a = 1 %}{% if true %}{% set a = 2 %}{% endif %}{{ a }}
{% for x in [1, 2] %}{{ y }}{% set y = x %}{% endfor %}{{ y is defined }}{{ x }}{{ loop is defined }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set t = 1, 2 %}{{ t }}{% set (c, d) = [3, 4] %}{{ c + d }}
{% set a, b = [1] %}
{% set block %}  x {{ n }} {% set inner = 1 %}{% endset %}[{{ block }}]{{ inner is defined }}{{ block is string }}
{% set up | upper | trim %} abc {% endset %}[{{ up }}]
{% set ns = namespace(found=false, count=0) %}{% for m in messages %}{% set ns.count = ns.count + 1 %}{% if m.role == 'user' %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.found }}{{ ns.count }}
{% set dict.b = 2 %}
{% set missing.b = 2 %}
{% set ns = namespace() %}{% set ns._a = 1 %}
{% set ns = namespace(x=[]) %}{% set ns.x = ns.x + [1] %}{% set ns.x = ns.x + [2] %}{{ ns.x }}{{ ns.y }}
{% macro f(a, b=2, c='x' ~ b) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ f(1) }}{{ f(1, 3) }}{{ f(a=4, c=5) }}{{ f() }}{{ f(1, b='q') }}
{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}
{% macro f(a) %}{% endmacro %}{{ f(b=2) }}
{% macro f(a) %}{% endmacro %}{{ f(1, a=2) }}
{% macro f(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, 3, k=4) }}
{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}
{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}
{% set g = 1 %}{% macro f() %}{{ g }}{{ h }}{% set g = 5 %}{{ g }}{% endmacro %}{% set h = 2 %}{{ f() }}{{ g }}
{% for x in [1, 2] %}{% macro f() %}{{ x }}{{ loop.index }}{% endmacro %}{{ f() }}{% endfor %}
{% macro outer() %}<{{ caller() }}>{% endmacro %}{% call outer() %}in{{ n }}{% endcall %}
{% macro outer(a) %}<{{ caller(a, 2) }}>{% endmacro %}{% call(x, y=1) outer('k') %}{{ x }}{{ y }}{% endcall %}
{% macro outer() %}<{{ caller() if caller else 'alone' }}>{% endmacro %}{{ outer() }}
{% macro outer() %}x{% endmacro %}{% call outer() %}y{% endcall %}
{% macro f() %}a{% endmacro %}{% set x = f() %}{{ x | upper }}{{ x ~ f() }}{{ f is callable }}
{{ f() }}{% macro f() %}later{% endmacro %}
{% filter upper | replace('B', 'x') %}abc {{ n }}{% endfilter %}
{% with a = 1, b = n %}{{ a }}{{ b }}{% set c = 5 %}{% endwith %}{{ a is defined }}{{ c is defined }}
{% set a = 1 %}{% with a = 2, b = a %}{{ a }}{{ b }}{% endwith %}
{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q }}
{% if x is defined and x is not none %}{{ x }}{% endif %}
{% if not add_generation_prompt is defined %}a{% endif %}{{ 'b' if add_generation_prompt else 'c' }}
{% generation %}a{% endgeneration %}ü{%- generation -%} 世 {%- endgeneration -%} x
{% set a = 1 %}{% generation %}{% set a = 2 %}{{ a }}{% endgeneration %}{{ a }}
{% for x in [1, 2] %}{% generation %}{{ loop.index }}{{ x }}{% endgeneration %}{% endfor %}
{% for x in [1] %}{% generation %}{% break %}{% endgeneration %}{% endfor %}
{{ 'a' if n == 7 }}{{ 'b' if n == 8 }}{{ ('b' if n == 8) ~ 'c' }}
{{ f(*[1, 2]) }}{% macro f(a, b) %}{% endmacro %}
{% macro f(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ f(*[1, 2]) }}{{ f(**{'a': 3, 'b': 4}) }}{{ f(1, *[2]) }}
{{ {'a': {'b': [1, {'c': 2}]}}.a.b[1].c }}{{ [[1, 2], [3]][0][1] }}{{ 'abc'[1] }}{{ (1, 2)[0] }}
{{ 'a' 'b' ~ 'c' }}{{ "}}" }}{{ '%}' }}{{ {'a': 1}['a'] }}{{ {'a': {}} }}
{{ messages[-1]['tool_calls'][0].function.arguments | tojson(indent=4) }}
{{ messages | selectattr('role', 'equalto', 'assistant') | map(attribute='content') | list | tojson }}
{% if %}{% endif %}
{% for %}{% endfor %}
{% else %}
{{ 1 + }}
{{ (1 }}
{{ 1) }}
{{ 'a }}
{{ a b }}
{{ 1 2 }}
{{ a. }}
{{ a | }}
{{ is defined }}
{{ a[ }}
{{ {1} }}
{{ $ }}
{# open
{% raw %}
{% include 'a' %}
{% do x %}
{% unknown %}
{% set 1 = 2 %}
{% set a.b.c = 2 %}
{% macro f(a=1, b) %}{% endmacro %}
{% call 5 %}{% endcall %}
{{ f(a=1, 2) }}
""".strip("\n").split("\n")
# Over several lines.
BLOCKS = r"""
  {% if true %}
  kept
  {% endif %}
  after
=====
  {%+ if true %}a{% endif +%}
b
=====
{# own line #}
c
   {# lstripped #}
d
=====
{{- ' a ' -}}   b   {{ 'c' }}
  {{ 'variables keep their blanks' }}

=====
  {% raw %}
 a
  {% endraw %}
b
=====
{% filter indent(2, first=true) %}
a
b
{% endfilter %}
=====
{%- for message in messages -%}
    {%- if message['role'] == 'user' -%}
        {{ '<|user|>\n' + message['content'] + eos_token }}
    {%- elif message.role == 'assistant' and message.content %}
        {{ '<|assistant|>\n'  +  message['content'] | trim + eos_token }}
    {% endif -%}
    {% if loop.last and add_generation_prompt %}
        {{ '<|assistant|>' }}
    {%- endif %}
{%- endfor -%}
=====
{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}
{% endfor %}
=====
  {% generation %}
  a
  {% endgeneration %}
b
=====
{% if true %}
{% endif %}
=====
{{ n
  + 1 }}{%
  if n %}multi{%
  endif %}
=====
{% if n %}
{% if x %}
{{ n }}
{% endif %}
{% endif %}
tail

{{ n }}


""".removeprefix("\n").split("\n=====\n")
ENDS = ["a\n", "a\n\n", "a\r\nb\rc\r\n", "{% if n %}\r\na\r\n{% endif %}\r\n", "", "\n", " ", "{{ n }}\n", "{% if n %}", "{{", "{%", "{#", "{ {", "}}", "a{", "\u00a0{%- if n %}b{% endif -%}\u2003c"]


def case(template, variables):
    try:
        compiled = _compile_jinja_template(template)
        text, marks = _render_with_assistant_indices(compiled, documents=None, **variables)
    except Exception as error:
        return {"template": template, "text": None, "says": f"{type(error).__name__}: {error}"}
    assert " at 0x" not in text, template
    return {"template": template, "text": text, **({"marks": [list(mark) for mark in marks]} if marks else {})}


def main():
    templates = ["{{ " + one + " }}" for one in EXPRESSIONS] + LINES + BLOCKS + ENDS
    cases = [case(template, VARIABLES) for template in templates]
    path = ROOT / "tests/unit/data/fixtures/chat_templates.json"
    rows = ",\n".join(json.dumps(one, ensure_ascii=False) for one in cases)
    path.write_text('{"variables": ' + json.dumps(VARIABLES, ensure_ascii=False) + ',\n"cases": [\n' + rows + "\n]}\n", encoding="utf-8")
    refused = [one for one in cases if one["text"] is None]
    print(f"{len(cases)} cases, {len(refused)} of them refused")


if __name__ == "__main__":
    main()
