"""Small templates of the shapes that models come with."""
# ruff: noqa: E501  # templates are easiest to read in one line

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content']"
    " + '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
DEFAULT_SYSTEM = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are helpful<|im_end|>\\n' }}{% endif %}{{ '<|im_start|>' + message['role']"
    " + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
LLAMA3 = """{%- set loop_messages = messages -%}
{%- for message in loop_messages -%}
    {%- set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' -%}
    {%- if loop.index0 == 0 -%}
        {%- set content = bos_token + content -%}
    {%- endif -%}
    {{- content -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
{%- endif -%}"""
MISTRAL = """{{ bos_token }}{% for message in messages %}
    {% if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate') }}
    {% endif %}
    {% if message.role == 'user' %}
        {{- '[INST] ' + message.content + ' [/INST]' }}
    {%- elif message.role == 'assistant' %}
        {{- message.content ~ eos_token }}
    {%- endif %}
{%- endfor %}"""
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% for message in messages %}{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)
FOLDED_SYSTEM = """{%- set ns = namespace(system='') -%}
{%- for m in messages if m.role == 'system' %}{% set ns.system = m.content ~ '\\n\\n' %}{% endfor -%}
{%- for m in messages if m.role != 'system' -%}
    {%- if loop.first and ns.system %}{{ '<u>' ~ ns.system ~ m.content ~ '</u>' }}
    {%- else %}{{ '<' ~ m.role[0] ~ '>' ~ m.content ~ '</' ~ m.role[0] ~ '>' }}{% endif -%}
{%- endfor -%}"""
TOOLS = """{%- macro describe(tool) -%}
- {{ tool.function.name }}: {{ tool | tojson(indent=2) }}
{% endmacro -%}
{% if tools is defined and tools %}
Tools:
{% for tool in tools %}
{{ describe(tool) }}
{%- endfor %}
{% endif %}
{% for m in messages %}
    {% if m.content is string and m.content | length > 0 %}
{{ m.role | upper }}: {{ m.content.split('</think>')[-1].lstrip('\\n') }}
    {% elif m.tool_calls is defined %}
        {% for call in m.tool_calls %}
{{ loop.index }}/{{ loop.length }} {{ call.name }}({{ call.arguments.items() | map('join', '=') | join(', ') }})
            {% if loop.last %}{% break %}{% endif %}
        {% endfor %}
    {% endif %}
{% endfor %}
{% generation %}{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{% endgeneration %}
{{ messages[::-1] | map(attribute='role') | join('|') }} {{ [1, 2] + [3] }} {{ '%s-%02d' % ('a', 7) }} {{ 2 ** 8 // 3 }}"""
EVERY = {
    "chatml": CHATML,
    "default system": DEFAULT_SYSTEM,
    "llama3": LLAMA3,
    "mistral": MISTRAL,
    "gemma": GEMMA,
    "folded system": FOLDED_SYSTEM,
    "tools": TOOLS,
}
