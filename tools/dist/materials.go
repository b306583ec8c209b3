package main

import (
	"context"
	"debug/buildinfo"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
)

// materials lists the modules that are in the program for Linux, as it says itself, in CycloneDX.
func (r *release) materials(context.Context) (err error) {
	info, err := buildinfo.ReadFile(r.binary(platforms[0]))
	if err != nil {
		return err
	}
	module := func(path, version string) cyclonedx.Component {
		url := "pkg:golang/" + path + "@" + version
		return cyclonedx.Component{BOMRef: url, Type: cyclonedx.ComponentTypeLibrary, Name: path, Version: version, PackageURL: url}
	}
	components := []cyclonedx.Component{module("std", info.GoVersion)}
	for _, dep := range info.Deps {
		if dep.Replace != nil {
			dep = dep.Replace
		}
		components = append(components, module(dep.Path, dep.Version))
	}
	bom := cyclonedx.NewBOM()
	program := cyclonedx.Component{
		BOMRef: "larder", Type: cyclonedx.ComponentTypeApplication, Name: "larder", Version: "v" + r.version,
		PackageURL: "pkg:golang/" + info.Main.Path + "@v" + r.version,
		Licenses:   &cyclonedx.Licenses{{License: &cyclonedx.License{ID: "MIT"}}},
	}
	bom.Metadata = &cyclonedx.Metadata{Timestamp: r.time.Format(time.RFC3339), Component: &program}
	bom.Components = &components
	name := "larder_" + r.version + "_sbom.cdx.json"
	f, err := os.Create(filepath.Join(r.out, name))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	r.made = append(r.made, name)
	return cyclonedx.NewBOMEncoder(f, cyclonedx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
}
