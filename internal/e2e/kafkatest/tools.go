package kafkatest

import (
	"context"
	"path/filepath"
)

// Tool runs a class of Kafka's command-line tools, e.g. "DumpLogSegments" or "consumer.ConsoleConsumer", and answers what it
// printed.
func Tool(ctx context.Context, class string, args ...string) (string, error) {
	return java(ctx, "org.apache.kafka.tools."+class, args...)
}

// Kcat runs kcat (librdkafka) and answers what it printed.
func Kcat(ctx context.Context, args ...string) (string, error) {
	if _, err := Install(); err != nil {
		return "", err
	}
	return run(ctx, "kcat", args...)
}

func java(ctx context.Context, class string, args ...string) (string, error) {
	all, err := jvm(class, args...)
	if err != nil {
		return "", err
	}
	// A tool lives for seconds: the quick compiler alone starts it sooner.
	return run(ctx, "java", append([]string{"-XX:TieredStopAtLevel=1"}, all...)...)
}

func jvm(class string, args ...string) ([]string, error) {
	jars, err := Install()
	if err != nil {
		return nil, err
	}
	return append([]string{
		"-Xms128m", "-Xmx512m", "-XX:+UseSerialGC",
		"-Dlog4j2.configurationFile=" + filepath.Join(filepath.Dir(jars), "log4j2.xml"),
		"-cp", filepath.Join(jars, "*"), class,
	}, args...), nil
}
