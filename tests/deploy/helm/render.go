// Renders a chart's templates as `helm template` does: Go's text/template with Helm's functions, on Helm's own libraries
// (sprig, sigs.k8s.io/yaml). Debian has these and no Helm. No dependencies, hooks, lookup or .Capabilities.
//
// Usage: render CHART RELEASE NAMESPACE [VALUES_FILE ...]; prints one YAML stream, then NOTES.txt to standard error.
package main

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"sort"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig"
	"sigs.k8s.io/yaml"
)

type files map[string][]byte

func (f files) Get(name string) string { return string(f[name]) }

func (f files) Glob(pattern string) files {
	found := files{}
	for name, content := range f {
		if matched, _ := path.Match(pattern, name); matched {
			found[name] = content
		}
	}
	return found
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "render:", err)
		os.Exit(1)
	}
}

func readYAML(name string) map[string]interface{} {
	text, err := os.ReadFile(name)
	check(err)
	values := map[string]interface{}{}
	check(yaml.UnmarshalStrict(text, &values))
	return values
}

// As Helm merges: maps key by key, null removes a default, all else replaces.
func merge(base, over map[string]interface{}) {
	for key, value := range over {
		inner, isMap := value.(map[string]interface{})
		default_, hasMap := base[key].(map[string]interface{})
		switch {
		case value == nil:
			delete(base, key)
		case isMap && hasMap:
			merge(default_, inner)
		default:
			base[key] = value
		}
	}
}

func toYAML(value interface{}) string {
	text, err := yaml.Marshal(value)
	check(err)
	return strings.TrimSuffix(string(text), "\n")
}

// Follows links, as Helm does when it loads a chart.
func load(chart string) files {
	found := files{}
	var walk func(string)
	walk = func(folder string) {
		entries, err := os.ReadDir(filepath.Join(chart, folder))
		check(err)
		for _, entry := range entries {
			name := path.Join(folder, entry.Name())
			info, err := os.Stat(filepath.Join(chart, name))
			check(err)
			if info.IsDir() {
				walk(name)
				continue
			}
			found[name], err = os.ReadFile(filepath.Join(chart, name))
			check(err)
		}
	}
	walk("")
	return found
}

func main() {
	chart, release, namespace := os.Args[1], os.Args[2], os.Args[3]
	all := load(chart)
	values := readYAML(filepath.Join(chart, "values.yaml"))
	for _, name := range os.Args[4:] {
		merge(values, readYAML(name))
	}
	meta := readYAML(filepath.Join(chart, "Chart.yaml"))
	context := map[string]interface{}{
		"Values":  values,
		"Release": map[string]interface{}{"Name": release, "Namespace": namespace, "Service": "Helm"},
		"Chart":   map[string]interface{}{"Name": meta["name"], "Version": meta["version"], "AppVersion": meta["appVersion"]},
		"Files":   all,
	}

	root := template.New("chart").Option("missingkey=zero")
	functions := sprig.TxtFuncMap()
	delete(functions, "env")
	delete(functions, "expandenv")
	functions["toYaml"] = toYAML
	functions["include"] = func(name string, data interface{}) (string, error) {
		var out bytes.Buffer
		err := root.ExecuteTemplate(&out, name, data)
		return out.String(), err
	}
	functions["required"] = func(message string, value interface{}) (interface{}, error) {
		if value == nil || value == "" {
			return nil, fmt.Errorf("%s", message)
		}
		return value, nil
	}
	root.Funcs(functions)
	var names []string
	for name, content := range all {
		if strings.HasPrefix(name, "templates/") {
			_, err := root.New(name).Parse(string(content))
			check(err)
			if !strings.HasPrefix(path.Base(name), "_") {
				names = append(names, name)
			}
		}
	}
	sort.Strings(names)
	for _, name := range names {
		var out bytes.Buffer
		check(root.ExecuteTemplate(&out, name, context))
		if path.Base(name) == "NOTES.txt" {
			fmt.Fprintln(os.Stderr, out.String())
		} else if strings.TrimSpace(out.String()) != "" {
			fmt.Printf("---\n# Source: %s\n%s\n", name, out.String())
		}
	}
}
