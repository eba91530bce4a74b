package kafkatest

import (
	"bufio"
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

//go:embed Consumers.java
var consumers []byte

// Consumers is a process with consumers of Kafka's Java client. Its methods are not for concurrent use.
type Consumers struct {
	dir       string
	process   *exec.Cmd
	in        io.WriteCloser
	out       *bufio.Scanner
	complaint bytes.Buffer
}

// StartConsumers starts the process.
func StartConsumers() (*Consumers, error) {
	dir, err := os.MkdirTemp("", "consumers-")
	if err != nil {
		return nil, err
	}
	source := filepath.Join(dir, "Consumers.java")
	args, err := jvm(source)
	if err == nil {
		err = os.WriteFile(source, consumers, 0o644)
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	c := &Consumers{dir: dir, process: exec.Command("java", append([]string{"-XX:TieredStopAtLevel=1"}, args...)...)}
	c.process.Stderr = &c.complaint
	out, err := c.process.StdoutPipe()
	if err == nil {
		c.in, err = c.process.StdinPipe()
	}
	if err == nil {
		err = start(c.process)
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	c.out = bufio.NewScanner(out)
	return c, nil
}

// Do sends a command, which Consumers.java lists, and answers the lines that it printed.
func (c *Consumers) Do(words ...any) (lines []string, err error) {
	if _, err := fmt.Fprintln(c.in, words...); err != nil {
		return nil, err
	}
	for c.out.Scan() {
		line := c.out.Text()
		switch why, failed := strings.CutPrefix(line, "error "); {
		case failed:
			err = errors.New(why)
		case line == ".":
			return lines, err
		default:
			lines = append(lines, line)
		}
	}
	return lines, errors.Join(errors.New("the consumers' process has ended"), c.out.Err(), c.Close())
}

// Close ends the process. Its error carries the end of what it complained of.
func (c *Consumers) Close() error {
	c.in.Close()
	err := c.process.Wait()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, tail(c.complaint.Bytes()))
	}
	return errors.Join(err, os.RemoveAll(c.dir))
}
