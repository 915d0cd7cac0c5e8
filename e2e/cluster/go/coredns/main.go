// CoreDNS with the plugins that a test cluster uses. The standard build has four times as many modules.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/template"
)

// Plugins are called in this order; `template` answers names outside of the cluster domain.
func init() {
	dnsserver.Directives = []string{"bind", "ready", "errors", "kubernetes", "template"}
}

func main() {
	coremain.Run()
}
