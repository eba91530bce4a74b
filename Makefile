# What CI does step by step stands in .ci/run; `make check` is all of it.
.PHONY: test check race lint fuzz e2e bench

test: ## under a minute, nothing but Go
	go test ./...

check: ## everything that must hold before a change lands
	.ci/run

race lint fuzz e2e:
	.ci/run $@

bench: ## beside its yardsticks, real Kafka included
	cd internal/e2e && go test -run '^$$' -bench . -benchtime 3x -timeout 60m ./...
