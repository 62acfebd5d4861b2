// CoreDNS with the plugins that the configuration of the conformance suite names. It stands for the suite's image of CoreDNS.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/whoami"
)

func main() {
	dnsserver.Directives = []string{"errors", "log", "forward", "whoami"}
	coremain.Run()
}
