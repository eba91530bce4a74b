module github.com/clustermirror/mirror

go 1.26.0

require (
	github.com/cenkalti/backoff/v4 v4.3.0
	github.com/klauspost/compress v1.15.9
	github.com/segmentio/kafka-go v0.4.51
	github.com/stretchr/testify v1.12.1
	github.com/twmb/franz-go/pkg/kmsg v1.15.1
	golang.org/x/sync v0.25.0
)

require (
	github.com/pierrec/lz4/v4 v4.1.15 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
)
