# What CI does step by step stands in .ci/run; `make check` is all of it.
.PHONY: test check race lint fuzz e2e bench sim faults

test: ## under a minute, nothing but Go
	go test ./...

check: ## everything that must hold before a change lands
	.ci/run

race lint fuzz e2e:
	.ci/run $@

bench: ## beside its yardsticks, real Kafka included
	cd internal/e2e && go test -run '^$$' -bench . -benchtime 3x -timeout 60m ./...

# HISTORIES and SEED choose others; a failing one prints how to see it again.
sim: ## 100,000 simulated histories, and then the planted faults
	SIM_HISTORIES=$(or $(HISTORIES),100000) SIM_SEED=$(or $(SEED),1) go test -run '^TestSimulation$$' -timeout 6h .
	$(MAKE) faults

faults: ## mistakes planted into the library, each of which the simulation must find
	go test -tags faults -run '^TestPlantedFaultsAreFound$$' -timeout 6h -v .
