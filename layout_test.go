package mirror_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The house rules, as far as a machine can see them. Each finding says what to do.

const module = "github.com/clustermirror/mirror"

// mayPanic are the files that may call panic, and the bug of ours that each call stands for. What the outside world does never
// ends in a panic.
var mayPanic = map[string]string{
	"coordinator.go":           "a value of our own has no JSON",
	"internal/wire/session.go": "a response is given back twice",
	"logtest/batches.go":       "the suite made a bad batch",
	"logtest/logtest.go":       "none: a check ends so, and the suite recovers it",
}

// sourceFile is one Go file of the module, by its path with slashes.
type sourceFile struct {
	path string
	text []byte
	ast  *ast.File
	fset *token.FileSet
}

func (f *sourceFile) test() bool { return strings.HasSuffix(f.path, "_test.go") }

// pkg is the import path of the file's package.
func (f *sourceFile) pkg() string { return path.Join(module, path.Dir(f.path)) }

func (f *sourceFile) at(pos token.Pos) string {
	return fmt.Sprintf("%s:%d", f.path, f.fset.Position(pos).Line)
}

// sourceFiles parses all Go files of this module; modules nested in it are their own.
func sourceFiles(t *testing.T) (files []*sourceFile) {
	t.Helper()
	fset := token.NewFileSet()
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != ".":
			_, noModule := os.Stat(filepath.Join(name, "go.mod"))
			if noModule == nil || d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") {
				return filepath.SkipDir
			}
		case strings.HasSuffix(name, ".go"):
			text, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			tree, err := parser.ParseFile(fset, name, text, parser.ParseComments)
			if err != nil {
				return err
			}
			files = append(files, &sourceFile{filepath.ToSlash(name), text, tree, fset})
		}
		return nil
	})
	require.NoError(t, err)
	require.NotEmpty(t, files)
	return files
}

// goPackage is what go list says of a package.
type goPackage struct {
	ImportPath   string
	Imports      []string
	Deps         []string
	TestImports  []string
	XTestImports []string
}

func goPackages(t *testing.T) (pkgs []goPackage) {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports,Deps,TestImports,XTestImports", "./...").Output()
	require.NoError(t, err)
	for dec := json.NewDecoder(bytes.NewReader(out)); dec.More(); {
		var p goPackage
		require.NoError(t, dec.Decode(&p))
		pkgs = append(pkgs, p)
	}
	require.NotEmpty(t, pkgs)
	return pkgs
}

// hosts are the public packages beside the root: they build on it, never the other way round.
var hosts = []string{module + "/disklog", module + "/memlog", module + "/broker", module + "/logtest"}

func under(pkg string, roots ...string) bool {
	return slices.ContainsFunc(roots, func(root string) bool { return pkg == root || strings.HasPrefix(pkg, root+"/") })
}

// Policy stands in the root, mechanism in internal, hosts beside it; production code links nothing that is for tests.
func TestWhoMayImportWhom(t *testing.T) {
	internal, examples, logtest := module+"/internal", module+"/examples", module+"/logtest"
	for _, p := range goPackages(t) {
		for _, dep := range p.Deps {
			switch {
			case under(p.ImportPath, internal):
				if under(dep, module) && !under(dep, internal) {
					t.Errorf("%s depends on %s: mechanisms take logs and functions, and know no policy", p.ImportPath, dep)
				}
			case p.ImportPath == module && under(dep, hosts...):
				t.Errorf("the root depends on %s: the host is the program's choice", dep)
			}
			if p.ImportPath != logtest && under(dep, "testing", "github.com/stretchr/testify") {
				t.Errorf("%s depends on %s, and so would every program that uses it", p.ImportPath, dep)
			}
		}
		if under(p.ImportPath, examples) {
			for _, dep := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
				if under(dep, internal) {
					t.Errorf("%s imports %s: an example can be copied into any program", p.ImportPath, dep)
				}
			}
		}
	}
}

// A type that is only another name for an internal one hides its methods from the documentation.
func TestNoPublicNameStandsForAnInternalType(t *testing.T) {
	for _, f := range sourceFiles(t) {
		if f.test() || under(f.pkg(), module+"/internal") {
			continue
		}
		internal := make(map[string]bool)
		for _, imp := range f.ast.Imports {
			if p := strings.Trim(imp.Path.Value, `"`); under(p, module+"/internal") {
				name := path.Base(p)
				if imp.Name != nil {
					name = imp.Name.Name
				}
				internal[name] = true
			}
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok || !spec.Name.IsExported() {
				return true
			}
			if sel, ok := spec.Type.(*ast.SelectorExpr); ok {
				if pkg, ok := sel.X.(*ast.Ident); ok && internal[pkg.Name] {
					t.Errorf("%s: %s stands for %s.%s: declare it here", f.at(spec.Pos()), spec.Name.Name, pkg.Name, sel.Sel.Name)
				}
			}
			return true
		})
	}
}

// Time passes in tests only where it costs none: in the bubbles of testing/synctest.
func TestNoTestWaitsForLuck(t *testing.T) {
	virtual := func(imp *ast.ImportSpec) bool { return imp.Path.Value == `"testing/synctest"` }
	for _, f := range sourceFiles(t) {
		if !f.test() || slices.ContainsFunc(f.ast.Imports, virtual) {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok && sel.Sel.Name == "Sleep" {
				if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Name == "time" {
					t.Errorf("%s sleeps: wait for what must happen, on a channel or in a synctest bubble", f.at(n.Pos()))
				}
			}
			return true
		})
	}
}

// Panics mean a bug of ours, and each file that has one says which.
func TestPanicsAreKnown(t *testing.T) {
	seen := make(map[string]bool)
	for _, f := range sourceFiles(t) {
		if f.test() || under(f.pkg(), module+"/examples") {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if fn, ok := call.Fun.(*ast.Ident); ok && fn.Name == "panic" {
					seen[f.path] = true
					if mayPanic[f.path] == "" {
						t.Errorf("%s panics: return an error, or name the bug of ours that it means", f.at(n.Pos()))
					}
				}
			}
			return true
		})
	}
	for name := range mayPanic {
		if !seen[name] {
			t.Errorf("%s does not panic any more", name)
		}
	}
}

// Every package has a comment, and each exported name has one over it, beside it or over its group. Methods of internal types
// may do without: there the interface, or the code, is near. So may the values of a type of their own, which says what they are.
func TestEveryPublicNameIsDocumented(t *testing.T) {
	documented := make(map[string]bool) // packages
	for _, f := range sourceFiles(t) {
		if f.test() {
			continue
		}
		documented[f.pkg()] = documented[f.pkg()] || f.ast.Doc != nil
		public := !under(f.pkg(), module+"/internal")
		missing := func(pos token.Pos, name string) {
			t.Errorf("%s: %s", f.at(pos), name)
		}
		for _, decl := range f.ast.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				method := d.Recv != nil
				switch {
				case d.Doc != nil, !d.Name.IsExported():
				case method && (!public || !exportedReceiver(d) || slices.Contains(selfEvident, d.Name.Name)):
				default:
					missing(d.Pos(), d.Name.Name)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch s := spec.(type) {
					case *ast.TypeSpec:
						if s.Name.IsExported() && d.Doc == nil && s.Doc == nil && s.Comment == nil {
							missing(s.Pos(), s.Name.Name)
						}
						if public {
							for _, m := range undocumentedMethods(s) {
								missing(m.Pos(), s.Name.Name+"."+m.Names[0].Name)
							}
						}
					case *ast.ValueSpec:
						if first, ok := d.Specs[0].(*ast.ValueSpec); ok && first.Type != nil {
							continue
						}
						for _, name := range s.Names {
							if name.IsExported() && d.Doc == nil && s.Doc == nil && s.Comment == nil {
								missing(s.Pos(), name.Name)
							}
						}
					}
				}
			}
		}
	}
	for pkg, ok := range documented {
		if !ok {
			t.Errorf("package %s has no comment", pkg)
		}
	}
}

// selfEvident are methods of which the interface that they satisfy says everything.
var selfEvident = []string{"Error", "Unwrap", "Is", "String", "MarshalJSON", "UnmarshalJSON", "MarshalText", "UnmarshalText", "LogValue"}

func exportedReceiver(d *ast.FuncDecl) bool {
	typ := d.Recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	if generic, ok := typ.(*ast.IndexExpr); ok {
		typ = generic.X
	}
	name, ok := typ.(*ast.Ident)
	return ok && name.IsExported()
}

// undocumentedMethods are those of an exported interface. One that has a single method says it all itself.
func undocumentedMethods(s *ast.TypeSpec) (list []*ast.Field) {
	i, ok := s.Type.(*ast.InterfaceType)
	if !ok || !s.Name.IsExported() || len(i.Methods.List) == 1 {
		return nil
	}
	for _, m := range i.Methods.List {
		if len(m.Names) > 0 && m.Names[0].IsExported() && m.Doc == nil && m.Comment == nil {
			list = append(list, m)
		}
	}
	return list
}

func TestGoFilesAreASCII(t *testing.T) {
	for _, f := range sourceFiles(t) {
		for i, line := range bytes.Split(f.text, []byte("\n")) {
			if j := bytes.IndexFunc(line, func(r rune) bool { return r > 126 || r < ' ' && r != '\t' }); j >= 0 {
				t.Errorf("%s:%d:%d: write an escape, or other words", f.path, i+1, j+1)
			}
		}
	}
}
