package kafkatest

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
)

var (
	//go:embed pom.xml
	pom []byte
	//go:embed log4j2.xml
	log4j []byte
)

// debian names the package that brings each program.
var debian = map[string]string{"javac": "default-jdk-headless", "mvn": "maven", "kcat": "kcat"}

// Install brings what the suite needs and the machine lacks: Java, Maven and kcat from Debian's packages (as root), Kafka's jars by
// Maven into the user's cache folder. It answers the folder of the jars. All of it happens once, also with several test
// processes at work.
var Install = sync.OnceValues(install)

func install() (jars string, err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	// Another pom or another log configuration is another folder, so nothing stale is ever used.
	sum := sha256.Sum256(slices.Concat(pom, log4j))
	dir := filepath.Join(cache, "clustermirror-e2e", hex.EncodeToString(sum[:6]))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	unlock, err := lock(filepath.Join(dir, "lock"))
	if err != nil {
		return "", err
	}
	defer unlock()

	if err := packages(); err != nil {
		return "", err
	}
	jars = filepath.Join(dir, "jars")
	if _, err := os.Stat(jars); err == nil {
		return jars, nil
	}
	err = errors.Join(
		os.WriteFile(filepath.Join(dir, "pom.xml"), pom, 0o644),
		os.WriteFile(filepath.Join(dir, "log4j2.xml"), log4j, 0o644),
		os.RemoveAll(jars+".part"),
	)
	if err != nil {
		return "", err
	}
	// The rename comes last: a folder with the final name is complete.
	_, err = run(context.Background(), "mvn", "-q", "-B", "-f", filepath.Join(dir, "pom.xml"), "dependency:copy-dependencies",
		"-DincludeScope=runtime", "-DoutputDirectory="+jars+".part")
	if err != nil {
		return "", err
	}
	return jars, os.Rename(jars+".part", jars)
}

func packages() error {
	var missing []string
	for program, pkg := range debian {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, pkg)
		}
	}
	if missing == nil {
		return nil
	}
	if _, err := run(context.Background(), "apt-get", "update", "-qq"); err != nil {
		return err
	}
	_, err := run(context.Background(), "env", append([]string{"DEBIAN_FRONTEND=noninteractive",
		"apt-get", "install", "-y", "-qq", "--no-install-recommends"}, missing...)...)
	return err
}

func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { f.Close() }, nil
}

// run answers what the program printed; its error carries the end of what it complained of.
func run(ctx context.Context, program string, args ...string) (string, error) {
	var out, complaint bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := start(cmd); err != nil {
		return "", err
	}
	if err := cmd.Wait(); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", program, err, tail(complaint.Bytes()))
	}
	return out.String(), nil
}

func tail(b []byte) []byte { return b[max(0, len(b)-4000):] }
