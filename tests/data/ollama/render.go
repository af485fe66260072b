// Renders conversations by Go's own text/template, with the values that Ollama gives its templates.
//
// stdin: {"template": TEXT, "chats": [{"messages": [..], "tools": [..]}, ..]}; stdout: [TEXT, ..].
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"text/template"
)

type call struct {
	ID       string
	Function struct {
		Index     int
		Name      string
		Arguments map[string]any
	}
}

type message struct {
	Role       string
	Content    string
	Thinking   string
	ToolCalls  []call `json:"tool_calls"`
	ToolName   string `json:"tool_name"`
	ToolCallID string `json:"tool_call_id"`
}

type kind []string

func (k *kind) UnmarshalJSON(data []byte) error {
	var one string
	if json.Unmarshal(data, &one) == nil {
		*k = kind{one}
		return nil
	}
	return json.Unmarshal(data, (*[]string)(k))
}

type property struct {
	Type        kind
	Description string
	Enum        []any
	Items       any
}

type tool struct {
	Type     string
	Function struct {
		Name        string
		Description string
		Parameters  struct {
			Type       string
			Required   []string
			Properties map[string]property
		}
	}
}

type chat struct {
	Messages []*message
	Tools    []tool
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// collate joins turns of one role, as Ollama does before a template sees them.
func collate(given []*message) (joined []*message) {
	for _, one := range given {
		last := len(joined) - 1
		if last >= 0 && joined[last].Role == one.Role && one.Role != "tool" {
			joined[last].Content += "\n\n" + one.Content
		} else {
			joined = append(joined, one)
		}
	}
	return joined
}

func main() {
	var asked struct {
		Template string
		Chats    []chat
	}
	must(json.NewDecoder(os.Stdin).Decode(&asked))
	made, err := template.New("").Option("missingkey=zero").Funcs(template.FuncMap{
		"json": func(value any) string { written, _ := json.Marshal(value); return string(written) },
	}).Parse(asked.Template)
	must(err)
	said := []string{}
	for _, one := range asked.Chats {
		var words bytes.Buffer
		messages := collate(one.Messages)
		system := ""
		for _, turn := range messages {
			if turn.Role == "system" {
				system += turn.Content
			}
		}
		must(made.Execute(&words, map[string]any{
			"System": system, "Messages": messages, "Tools": one.Tools, "Response": "", "Think": false,
			"ThinkLevel": "", "IsThinkSet": false,
		}))
		said = append(said, words.String())
	}
	must(json.NewEncoder(os.Stdout).Encode(said))
}
