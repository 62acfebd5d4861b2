// The conformance suite of Gateway API as a program of its own: scripts/conformance runs it with the suite's flags.
package suite

import (
	"testing"

	"sigs.k8s.io/gateway-api/conformance"
	_ "sigs.k8s.io/gateway-api/conformance/utils/flags"
)

func TestConformance(t *testing.T) {
	conformance.RunConformance(t)
}
